"""The registered op of the gather, and the public function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npu_op_runtime.autograd import refuse_gradients
from npu_op_runtime.checks import require_same_device, require_tensor
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import DEBUG, choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.launch import launch, load_kernels
from npu_op_runtime.registration import register_op
from npu_op_runtime.tiling import UB_BLOCK_BYTES, next_power_of_2, programs

from .reference import gather_cos_sin_reference

if TYPE_CHECKING:
    from .module import RotaryCache

# NPU: tokens of a tile, and of one where a core has that many. A step of fewer tokens moves the whole small tile all the same.
_TOKENS, _MANY_TOKENS = 16, 64
# Shares of UB that one of the two buffers of these tiles may take.
_UB_SHARE, _MANY_UB_SHARE = 8, 4
# CUDA: elements of a program's tile, 8 for each of 128 threads.
_CUDA_TILE_ELEMENTS = 1024


def gather_cos_sin(
    cache: torch.Tensor | RotaryCache, positions: torch.Tensor, *, implementation: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of each position, in the form that the rotary operators take.

    Call it once per forward pass, hand the result to all layers, and keep it nowhere: in a captured graph the gather is then part
    of what is replayed.

    Args:
        cache: a RotaryCache, or its table: (rows, 2 * pairs), cosines before sines, fp16, bf16 or fp32; rows may lie apart.
        positions: (tokens,), int32 or int64. One outside of the table is clamped to it on the device, without a wait; with NPU_OP_DEBUG=1
            in the environment it is asserted there (torch._assert_async).
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        cos and sin, each (tokens, pairs), in the dtype of the cache: views of one new tensor, so their rows lie 2 * pairs apart.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a gradient is asked for, or a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    table: Any = getattr(cache, "cos_sin", cache)
    require_tensor("cache", table)
    require_dtype("cache", table)
    if table.dim() != 2 or table.shape[0] == 0 or table.shape[1] == 0 or table.shape[1] % 2:
        raise ValueError(f"cache must have shape (rows, 2 * pairs), with one of each at least (got {tuple(table.shape)})")
    if table.stride(1) != 1:
        raise ValueError(f"cache must have a contiguous last dimension, a copy would cost more than the gather (got {table.stride()})")
    require_tensor("positions", positions)
    require_dtype("positions", positions, (torch.int32, torch.int64))
    if positions.dim() != 1:
        raise ValueError(f"positions must have shape (tokens,) (got {tuple(positions.shape)})")
    require_same_device(cache=table, positions=positions)
    if DEBUG:
        rows = table.shape[0]
        torch._assert_async(((positions >= 0) & (positions < rows)).all(), f"positions must be in [0, {rows}), the rows of cache")
    chosen = choose(table, implementation)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no op for it but PyTorch's own, which is 'eager'")
    if chosen == "eager":
        return gather_cos_sin_reference(table, positions)
    refuse_gradients("gather_cos_sin", cache=table)
    cos, sin = gather(table, positions).chunk(2, dim=-1)
    return cos, sin


def _tiles(target: Target, row_bytes: int) -> tuple[int, int]:
    """Tokens of a tile and of a large one (0: no large ones); 1 for rows of no whole blocks, in a tile each would be taken apart."""
    if 2 * row_bytes > target.ub_bytes:
        raise ValueError(f"cache must have rows of {target.ub_bytes // 2} bytes at most on this device (got {row_bytes})")
    if row_bytes % UB_BLOCK_BYTES:
        return 1, 0
    sizes = ((_TOKENS, _UB_SHARE), (_MANY_TOKENS, _MANY_UB_SHARE))
    tile, many = (min(most, target.ub_bytes // share // row_bytes) for most, share in sizes)
    return max(tile, 1), many if many > tile > 1 else 0


def _gather_kernel(cache, positions):
    out = _gather_fake(cache, positions)
    tokens, cols = out.shape
    target = target_of(cache)
    if target.backend == "cuda":
        block = next_power_of_2(cols)
        tile, many = max(2, _CUDA_TILE_ELEMENTS // block), 0
        count = programs(target, -(-tokens // tile), persistent=False)
    else:
        block, (tile, many) = cols, _tiles(target, cols * cache.element_size())
        count = programs(target, tokens, persistent=False)
    launch(
        load_kernels("npu_op_rotary_cache.kernel", target.backend).gather_rows_kernel, count, target, cache,
        cache, positions, out, tokens, cache.shape[0] - 1, cache.stride(0), positions.stride(0),
        COLS=cols, BLOCK=block, TOKENS=tile, MANY=many,
    )  # fmt: skip
    return out


def _gather_reference(cache, positions):
    return torch.cat(gather_cos_sin_reference(cache, positions), dim=-1)


def _gather_fake(cache, positions):
    return cache.new_empty(positions.shape[0], cache.shape[1])


gather = register_op(
    "npu_op_rotary_cache",
    "gather(Tensor cache, Tensor positions) -> Tensor",
    kernel=_gather_kernel,
    reference=_gather_reference,
    fake=_gather_fake,
)
