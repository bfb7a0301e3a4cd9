"""What the losses over two distributions share: element by element over rows x vocabulary, then one sum.

Each program adds up its tiles in fp32 and stores one partial sum; a second kernel adds those in a fixed order. No atomics, so the
loss repeats bit for bit, and no tensor of the inputs' size besides the gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from .checks import require_same_device, require_shape, require_tensor
from .device import Target, target_of
from .dtypes import require_dtype
from .elementwise import ALIGNMENT, is_dense
from .launch import Launch, dtypes_of, launch, load_kernels
from .rows import rows_of
from .tiling import Buffer, next_power_of_2, plan_blocks, plan_flat, programs

REDUCTIONS = ("none", "sum", "mean", "batchmean")

_KERNELS = "npu_op_runtime.divergence_kernel"

# CUDA: warps per multiprocessor of a kernel with partial sums, all at work at once: enough loads in flight, registers for each, and few
# enough programs (of at least 4 warps) that one adds up their sums.
_CUDA_WARPS = 32
_CUDA_FEWEST_WARPS = 4

# Labels are vocabulary indices; kernels compare them as int32.
_LABEL_DTYPES = (torch.int64, torch.int32)
_LABEL_BLOCK = 4096


def require_distributions(**tensors: torch.Tensor) -> None:
    """Two floating tensors of one shape with at least one dimension, on one device; raises by name otherwise."""
    (first, one), (second, other) = tensors.items()
    for argument, tensor in tensors.items():
        require_tensor(argument, tensor)
        require_dtype(argument, tensor)
    if one.dim() == 0:
        raise ValueError(f"{first} must have at least one dimension (got a scalar)")
    require_shape(second, other, one.shape)
    require_same_device(**tensors)


def require_labels(shift_labels: object, ignore_index: object, like: torch.Tensor) -> None:
    """Labels, if any, are one integer per row of `like`, and ignore_index is an int of 32 bits; raises by name otherwise."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int (got {type(ignore_index).__name__})")
    if not -(2**31) <= ignore_index < 2**31:
        raise ValueError(f"ignore_index must fit 32 bits (got {ignore_index})")
    if shift_labels is not None:
        require_tensor("shift_labels", shift_labels)
        assert isinstance(shift_labels, torch.Tensor)
        require_dtype("shift_labels", shift_labels, _LABEL_DTYPES)
        require_shape("shift_labels", shift_labels, like.shape[:-1])
        if shift_labels.device != like.device:
            raise ValueError(f"shift_labels must be on {like.device} like the distributions (got {shift_labels.device})")


def launch_divergence(
    module: str,
    name: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[torch.Tensor | None],
    labels: torch.Tensor | None,
    factors: Sequence[torch.Tensor | None],
    scalars: tuple[Any, ...],
    *,
    work: int,
    reduced: bool,
    cuda_warps: int = _CUDA_FEWEST_WARPS,
    cuda_resident_warps: int = _CUDA_WARPS,
    **constants: Any,
) -> torch.Tensor | None:
    """Launches `<name>_kernel` over tensors of one shape, flat over memory where their layouts agree, by rows otherwise.

    The kernel takes `(*inputs, *outputs, labels, partials, *factors, *scalars, outer, middle, inner, (outer, middle, row stride) of each
    input, output and the labels, n_cols, BLOCK, FLAT, ONE_BLOCK, ALIGNED, **constants)`; None stands for a tensor that it does not touch.
    Nothing may be empty. `work` is how many fp32 tiles it keeps in UB beside what it loads and stores. On CUDA a tile is shared by
    `cuda_warps` warps, 4 or 8: the more values a thread keeps of each element, the fewer elements it may have. `cuda_resident_warps` is
    how many of a kernel with partial sums are at work on a multiprocessor, as its registers allow.

    Returns:
        The partial sums, (programs,) fp32, if `reduced`.
    """
    given = [tensor for tensor in inputs if tensor is not None]
    wanted = [tensor for tensor in outputs if tensor is not None]
    first = given[0]
    target = target_of(first)
    n_cols = first.shape[-1]
    flat = labels is None and all(tensor.stride() == first.stride() for tensor in (*given, *wanted)) and is_dense(first)
    tensors: list[torch.Tensor | None] = [*inputs, *outputs, labels]
    rows = None if flat else rows_of([*given, *([] if labels is None else [labels.unsqueeze(-1)])], wanted)
    walked: tuple[int, ...] = (1, 1, 1, *(0,) * (3 * len(tensors)), first.numel())
    if rows is not None:
        taken = iter(zip(rows.tensors, rows.strides))
        laid = {id(tensor): next(taken) for tensor in (*given, *([] if labels is None else [labels]), *wanted)}
        layout = [(None, (0, 0, 0)) if tensor is None else laid[id(tensor)] for tensor in tensors]
        tensors = [tensor for tensor, _ in layout]
        walked = (rows.outer, rows.middle, rows.inner, *[stride for _, strides in layout for stride in strides], n_cols)
    run, grid = _launch_of(
        module, name, target, dtypes_of(*inputs, *outputs), dtypes_of(labels, *factors), n_cols, flat, walked, scalars, work, reduced,
        cuda_warps, cuda_resident_warps, tuple(constants.items()),
    )  # fmt: skip
    partials = first.new_empty(grid, dtype=torch.float32) if reduced else None
    run(*tensors, partials, *factors)
    if rows is not None:
        rows.write_back()
    return partials


# Kept, because working it out takes longer than the rest of a launch; every number of rows has one of its own.
@functools.lru_cache(maxsize=4096)
def _launch_of(
    module: str,
    name: str,
    target: Target,
    streamed: tuple[torch.dtype | None, ...],
    others: tuple[torch.dtype | None, ...],
    n_cols: int,
    flat: bool,
    walked: tuple[int, ...],
    scalars: tuple[Any, ...],
    work: int,
    reduced: bool,
    cuda_warps: int,
    cuda_resident_warps: int,
    constants: tuple[tuple[str, Any], ...],
) -> tuple[Launch, int]:
    """The launch, and how many programs it has; `walked` is what the kernel takes from `outer` to `n_cols`."""
    buffers = _buffers(tuple([dtype.itemsize for dtype in streamed if dtype is not None]), work)
    outer, middle, inner = walked[:3]
    if flat:
        block = plan_flat(target, buffers).block
        tiles = -(-walked[-1] // block)
    else:
        block = plan_blocks(target, n_cols, buffers).cols
        tiles = outer * middle * inner * -(-n_cols // block)
    grid = programs(target, tiles, persistent=False)
    if reduced:
        grid = min(grid, _most_partials(target, cuda_resident_warps // cuda_warps))
    launch = Launch(
        module, f"{name}_kernel", grid, target, (*scalars, *walked), num_warps=cuda_warps,
        BLOCK=block, FLAT=flat, ONE_BLOCK=outer * middle == 1, ALIGNED=n_cols % ALIGNMENT == 0, **dict(constants),
    )  # fmt: skip
    return launch, grid


def sum_loss(partials: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum of the partial sums, 0-d, rounded once to `dtype`."""
    loss = partials.new_empty((), dtype=dtype)
    _sum_launch(target_of(partials), partials.numel(), dtype)(partials, loss)
    return loss


@functools.cache
def _sum_launch(target: Target, count: int, dtype: torch.dtype) -> Launch:
    most = _most_partials(target, _CUDA_WARPS // _CUDA_FEWEST_WARPS)
    return Launch(_KERNELS, "sum_loss_kernel", 1, target, (count,), BLOCK=next_power_of_2(most))


def kept_scale(labels: torch.Tensor, ignore_index: int, columns: int) -> torch.Tensor:
    """1 / (kept rows x columns), 0 where no row is kept: (1,) fp32 on the device of the labels, which nobody waits for."""
    scale = labels.new_empty(1, dtype=torch.float32)
    labels = labels.contiguous()
    target = target_of(labels)
    kernel = load_kernels(_KERNELS, target.backend).kept_scale_kernel
    launch(kernel, 1, target, labels, labels, scale, labels.numel(), ignore_index, columns, BLOCK=_LABEL_BLOCK)
    return scale


def _buffers(itemsizes: tuple[int, ...], work: int) -> tuple[Buffer, ...]:
    """What a kernel keeps in UB; a stream of half precision has an fp32 copy at work. The compile gate proves the sums."""
    copies = sum(itemsize < 4 for itemsize in itemsizes)
    return (*(Buffer(itemsize, streamed=True) for itemsize in itemsizes), *(Buffer(4),) * (work + copies))


def _most_partials(target: Target, cuda_programs: int) -> int:
    return cuda_programs * target.cores if target.backend == "cuda" else target.cores
