"""How the rotary operators launch: one kernel over tiles of tokens x heads of q and k, whatever their layout."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .checks import require_tensor
from .device import Target, target_of
from .dtypes import require_dtype
from .inplace import overwrite
from .launch import Launch
from .tiling import UB_BLOCK_BYTES, next_power_of_2, programs

# UB bytes per element of q and k in a tile, by (item size, interleaved): streams in and out double-buffered, fp32 work tiles, and the
# scratch of bishengir-compile's vinterleave, nine times its output. Read from its memory plans; the compile gate proves the sums.
_UB_BYTES = {(2, False): 16.8, (2, True): 37.0, (4, False): 24.5, (4, True): 66.0}
# The same for interleaved pairs of bf16 as words, which need no shuffle: of one tensor, and of q and k, of which one is at work at a time.
_UB_BYTES_WORDS = {False: 18.4, True: 12.2}
# The same for a column that is copied.
_UB_BYTES_COPIED = {2: 8, 4: 16}

# More tokens in a tile would leave the cores that share a short sequence without a second tile to load meanwhile.
_MAX_TOKENS = 64

# CUDA: few heads, and so many tokens that 128 threads load 16 bytes each of one head, so that a thread has the angles of all its heads.
_CUDA_HEADS = 4
_CUDA_HEAD_BYTES = 128 * 16
# Where a head's tokens lie side by side: few tokens of all heads, 16 pairs for each thread. Measured on an H200, both.
_CUDA_PAIRS = 128 * 16

_INT32_MAX = 2**31 - 1

# Dimensions that may not be expanded: all but the batch of what is read (q and k, angles), all of what is written.
_SPACED_HEADS = (1, 2)
_SPACED_ANGLES = (-2,)
_SPACED_OUTPUTS = (0, 1, 2)


class HeadsPlan(NamedTuple):
    """Tile of a rotary kernel: `tokens` x (`q_heads` + `k_heads`); `pieces` of those make up all heads. Blocks: powers of two on CUDA."""

    tokens: int
    q_heads: int
    k_heads: int
    pieces: int
    half_block: int
    rest_block: int


@functools.cache
def plan_heads(
    target: Target,
    heads: tuple[int, int],
    half: int,
    rest: int,
    itemsize: int,
    interleaved: bool,
    head_major: bool,
    max_heads: int,
    words: bool = False,
) -> HeadsPlan:
    """The tile for `heads` of q and k with `half` pairs and `rest` copied columns each.

    `head_major`: the tokens of a head lie side by side, not the heads of a token; `words`: a pair of bf16 is one int32.

    Raises:
        ValueError: not even one head fits UB.
    """
    if target.backend == "cuda":
        return _cuda_heads(heads, half, rest, itemsize, interleaved, head_major)
    granule = UB_BLOCK_BYTES // itemsize
    columns = 2 * _round_up(half, granule)
    rotated = _UB_BYTES_WORDS[heads[1] > 0] if words else _UB_BYTES[itemsize, interleaved]
    per_head = columns * rotated + _round_up(rest, granule) * _UB_BYTES_COPIED[itemsize]
    # Angles: four fp32 rows at work and two streamed ones, fp32 at most.
    angles = columns * (2 * 4 + 2 * 2 * 4)
    for pieces in range(1, max(heads) + 1):
        q_heads, k_heads = (-(-count // pieces) for count in heads)
        tokens = int(target.ub_bytes // ((q_heads + k_heads) * per_head + angles))
        if tokens and max(q_heads, k_heads) <= max_heads:
            return HeadsPlan(min(tokens, _MAX_TOKENS), q_heads, k_heads, pieces, half, rest)
    raise ValueError(f"a head of {2 * half + rest} columns does not fit the UB of {target.ub_bytes} bytes")


def require_heads(q: torch.Tensor, k: torch.Tensor | None, heads_dim: int) -> None:
    """q has four dimensions, heads in `heads_dim`, and k agrees with it in all others, in dtype and in device.

    Raises:
        TypeError, ValueError: naming the argument, what came and what is allowed.
    """
    require_tensor("q", q)
    require_dtype("q", q)
    if q.dim() != 4:
        raise ValueError(f"q must have four dimensions (got shape {tuple(q.shape)})")
    if k is None:
        return
    require_tensor("k", k)
    require_dtype("k", k, (q.dtype,))
    q_shape, k_shape, tokens_dim = q.shape, k.shape, 3 - heads_dim
    if len(k_shape) != 4 or k_shape[0] != q_shape[0] or k_shape[3] != q_shape[3] or k_shape[tokens_dim] != q_shape[tokens_dim]:
        heads = k_shape[heads_dim] if k.dim() == 4 else "any"
        expected = tuple(heads if dim == heads_dim else size for dim, size in enumerate(q_shape))
        raise ValueError(f"k must have the shape of q with its own number of heads, {expected} (got {tuple(k.shape)})")


def require_overwritable(**tensors: torch.Tensor | None) -> None:
    """Each given tensor can take a result: its last dimension is contiguous and no two elements share memory.

    Raises:
        ValueError: naming the argument and its strides.
    """
    for argument, tensor in tensors.items():
        if tensor is not None and not _walkable(tensor.shape, tensor.stride(), range(tensor.dim() - 1)):
            raise ValueError(
                f"{argument} must have a contiguous last dimension and no expanded one to be written in place"
                f" (got strides {tensor.stride()})"
            )


def _walkable(shape: Sequence[int], strides: Sequence[int], spaced: Iterable[int]) -> bool:
    """Whether a kernel can walk it: the last dimension is contiguous, and none of `spaced` is expanded; or it is empty."""
    apart = all(strides[dim] != 0 or shape[dim] == 1 for dim in spaced)
    return 0 in shape or (apart and (strides[-1] == 1 or shape[-1] == 1))


def launch_rotation(
    module: str,
    name: str,
    heads: Sequence[torch.Tensor | None],
    angles: Sequence[torch.Tensor],
    half: int,
    *,
    heads_dim: int,
    interleaved: bool,
    inverse: bool,
    k_apart: bool = False,
    **constants: Any,
) -> None:
    """Launches `<name>(Q, K, Q_OUT, K_OUT, *angles, batches, tokens, strides)` on tensors that it copies where the kernel cannot walk them.

    Strides are three each of the first four, two (batch, token) each of angles, and of each angle those of dimensions before its batch.

    Args:
        module, name: of the kernel.
        heads: q, k, q_out, k_out in four dimensions; outputs may be inputs; k may be None.
        angles: (sequence, columns) or (..., batch or 1, sequence, columns).
        half: pairs that are rotated.
        heads_dim: 1 for (batch, heads, sequence, width), 2 for (batch, sequence, heads, width).
        k_apart: the kernel can leave k to programs of its own, in tiles of K_TOKENS tokens and K_PIECES pieces; with the constant K_APART
            it is to do so. It is set on the NPU, where a head or two of k in every tile of q cost more than they move.
        constants: its own constexpr arguments beside the plan's.
    """
    q, k, *outputs = heads
    if q is None or (q.numel() == 0 and (k is None or k.numel() == 0)):
        return
    rotation = {"heads_dim": heads_dim, "interleaved": interleaved, "inverse": inverse, "k_apart": k_apart, **constants}
    words = interleaved and target_of(q).backend != "cuda" and all(_in_words(tensor) for tensor in heads if tensor is not None)
    run = rotation_of(module, name, heads, angles, half, words=words, **rotation)
    if run is None:
        # One copy of each: in place stays in place.
        copies = {id(tensor): _contiguous(tensor, _SPACED_HEADS) for tensor in (q, k) if tensor is not None}
        copies |= {id(tensor): _contiguous(tensor, _SPACED_OUTPUTS) for tensor in outputs if tensor is not None}
        walkable = [None if tensor is None else copies[id(tensor)] for tensor in heads]
        launch_rotation(module, name, walkable, [_contiguous(angle, _SPACED_ANGLES) for angle in angles], half, **rotation)
        overwrite(outputs, walkable[2:])
        return
    if words:
        heads = [None if tensor is None else tensor.view(torch.int32) for tensor in heads]
    run(*heads, *angles)


def rotation_of(
    module: str,
    name: str,
    heads: Sequence[torch.Tensor | None],
    angles: Sequence[torch.Tensor],
    half: int,
    *,
    heads_dim: int,
    interleaved: bool,
    inverse: bool,
    k_apart: bool = False,
    words: bool = False,
    **constants: Any,
) -> Launch | None:
    """The launch for tensors like these, which takes `heads`, as int32 if `words`, and `angles`; None if one must be copied first."""
    q, k, q_out, _ = heads
    assert q is not None
    return _rotation(
        module, name, target_of(q), q.dtype, None if k is None else k.dtype, words, q_out is q, k_apart, interleaved, inverse, heads_dim,
        half, tuple(constants.items()),
        tuple([None if tensor is None else (tensor.shape, tensor.stride()) for tensor in heads]),
        tuple([(angle.shape, angle.stride(), angle.dtype) for angle in angles]),
    )  # fmt: skip


def _contiguous(tensor: torch.Tensor, spaced: Iterable[int]) -> torch.Tensor:
    return tensor if _walkable(tensor.shape, tensor.stride(), spaced) else tensor.contiguous()


# Kept, because working it out takes longer than the rest of a launch; every number of tokens has one of its own.
@functools.lru_cache(maxsize=4096)
def _rotation(
    module: str,
    name: str,
    target: Target,
    dtype: torch.dtype,
    k_dtype: torch.dtype | None,
    words: bool,
    in_place: bool,
    k_apart: bool,
    interleaved: bool,
    inverse: bool,
    heads_dim: int,
    half: int,
    own_constants: tuple[tuple[str, Any], ...],
    heads: tuple[tuple[tuple[int, ...], tuple[int, ...]] | None, ...],
    angles: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...],
) -> Launch | None:
    """None if one of `heads` or `angles` must be copied first.

    `heads` are (shape, strides) of q, k, q_out and k_out, `angles` (shape, strides, dtype); the others as in `launch_rotation`. Dtypes that
    decide nothing here are those that Triton compiles for.
    """
    spaced = (_SPACED_HEADS, _SPACED_HEADS, _SPACED_OUTPUTS, _SPACED_OUTPUTS)
    if not all(_walkable(*tensor, dims) for tensor, dims in zip(heads, spaced) if tensor):
        return None
    if not all(_walkable(shape, strides, _SPACED_ANGLES) for shape, strides, _ in angles):
        return None
    one_tile = target.backend == "cuda"
    # Sizes and strides as (batch, sequence, heads).
    order = (0, 1, 2) if heads_dim == 2 else (0, 2, 1)
    sizes = [None if tensor is None else [tensor[0][dim] for dim in order] for tensor in heads[:2]]
    steps = [None if tensor is None else [tensor[1][dim] for dim in order] for tensor in heads]
    q_sizes, k_sizes = sizes
    assert q_sizes is not None and heads[0] is not None and steps[0] is not None
    batches, tokens, width = q_sizes[0], q_sizes[1], heads[0][0][3]
    given = [step for step in steps if step is not None]
    counts = (q_sizes[2], 0 if k_sizes is None else k_sizes[2])
    itemsize = dtype.itemsize
    head_stride = max(step[2] for step in given)
    # In place the columns that are not rotated are where they belong.
    rest = 0 if in_place else width - 2 * half
    max_heads = min(max(counts), max(1, _INT32_MAX // max(1, head_stride) - 1))
    head_major = steps[0][2] > steps[0][1]
    k_plan = plan = plan_heads(target, counts, half, rest, itemsize, interleaved, head_major, max_heads, words)
    k_tile, tiles_of_k = plan.k_heads, 0
    constants: dict[str, int | bool] = {}
    apart = k_apart and not one_tile
    if apart:
        plan, k_plan = (plan_heads(target, (count, 0), half, rest, itemsize, interleaved, head_major, max_heads, words) for count in counts)
        k_tile = k_plan.q_heads
        tiles_of_k = -(-tokens // k_plan.tokens)
    if k_apart:
        constants |= {"K_TOKENS": k_plan.tokens, "K_PIECES": k_plan.pieces, "K_APART": apart}
    if words:
        # Two columns each; every stride is even.
        given = [[stride // 2 for stride in step] for step in given]
        steps = [None if step is None else [stride // 2 for stride in step] for step in steps]
        width, rest = width // 2, rest // 2
        plan = plan._replace(rest_block=rest)
    angle_strides = [(strides[-3] if len(shape) > 2 and shape[-3] > 1 else 0, strides[-2]) for shape, strides, _ in angles]
    one_block = batches == 1 or all(batch == tokens * token for batch, token in (*(step[:2] for step in given), *angle_strides))
    if one_block:
        batches, tokens = 1, batches * tokens
    numbers = [stride for step in steps for stride in (step or (0, 0, 0))]
    numbers += [stride for pair in angle_strides for stride in pair]
    numbers += [stride for _, strides, _ in angles for stride in strides[:-3]]
    # A width of whole 32-byte blocks keeps every stride aligned, or none, whatever the number of tokens.
    aligned = width % 16 == 0 and all(stride % 16 == 0 for stride in numbers)
    tiles = batches * -(-tokens // plan.tokens) * (plan.pieces if one_tile else 1) + tiles_of_k
    constants |= {
        "Q_HEADS": counts[0], "K_HEADS": counts[1], "TOKENS": plan.tokens, "Q_TILE": plan.q_heads, "K_TILE": k_tile, "PIECES": plan.pieces,
        "HALF": half, "HALF_BLOCK": plan.half_block, "REST": rest, "REST_BLOCK": plan.rest_block,
        "ONE_BLOCK": one_block, "ONE_TILE": one_tile, "ALIGNED": aligned, "INTERLEAVED": interleaved, "INVERSE": inverse,
    }  # fmt: skip
    grid = programs(target, tiles, persistent=False)
    return Launch(module, name, grid, target, (batches, tokens, *numbers), **constants, **dict(own_constants))


def _in_words(tensor: torch.Tensor) -> bool:
    """Whether pairs of neighbouring columns of bf16 are aligned 32-bit words."""
    even = all(step % 2 == 0 for step in (tensor.storage_offset(), tensor.shape[-1], *tensor.stride()[:-1]))
    return tensor.dtype == torch.bfloat16 and even and tensor.stride(-1) == 1


def _cuda_heads(heads: tuple[int, int], half: int, rest: int, itemsize: int, interleaved: bool, head_major: bool) -> HeadsPlan:
    half_block = next_power_of_2(half)
    pieces = -(-max(heads) // (max(1, _CUDA_PAIRS // half_block) if head_major else _CUDA_HEADS))
    q_heads, k_heads = (next_power_of_2(-(-count // pieces)) if count else 0 for count in heads)
    if head_major:
        tokens = _CUDA_PAIRS // (max(q_heads, k_heads) * half_block)
    else:
        tokens = _CUDA_HEAD_BYTES // (itemsize * half_block * (2 if interleaved else 1))
    return HeadsPlan(max(1, tokens), q_heads, k_heads, pieces, half_block, next_power_of_2(rest) if rest else 0)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
