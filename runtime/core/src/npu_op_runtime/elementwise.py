"""Launches an element-wise kernel over tensors of one shape: flat over memory where their layouts agree, by rows otherwise."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from .device import Target, target_of
from .launch import Launch, dtypes_of, launch, load_kernels
from .rows import rows_of
from .tiling import Buffer, plan_blocks, plan_flat, programs

# Elements that CUDA loads at once, at most; a mask that ends within them would be applied element by element.
ALIGNMENT = 16


def launch_elementwise(
    module: str,
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor | None],
    buffers: tuple[Buffer, ...],
    **constants: Any,
) -> None:
    """Launches `<name>_kernel(*tensors, elements, BLOCK, ALIGNED, ONE_TILE)` or, for strided tensors, `<name>_rows_kernel`.

    ALIGNED says that the width, hence `elements` for any number of rows, is a multiple of 16: `elements` itself must not be specialised.
    ONE_TILE that each program has one block, as on CUDA. The rows kernel takes
    `(*tensors, outer, middle, inner, (outer, middle, row stride) of each tensor, n_cols, ROWS, COLS, ONE_BLOCK)`.
    `constants` go to either. Outputs may be inputs (in place), or None where nobody wants them. Empty tensors launch nothing.
    """
    wanted = [output for output in outputs if output is not None]
    first = inputs[0]
    if first.numel() == 0 or not wanted:
        return
    target = target_of(first)
    if all(tensor.stride() == first.stride() for tensor in (*inputs, *wanted)) and is_dense(first):
        aligned = first.dim() > 0 and first.shape[-1] % ALIGNMENT == 0
        dtypes = dtypes_of(*inputs, *outputs)
        _flat_launch(module, name, target, dtypes, first.numel(), aligned, buffers, tuple(constants.items()))(*inputs, *outputs)
        return
    n_cols = first.shape[-1]
    plan = plan_blocks(target, n_cols, buffers)
    rows = rows_of(inputs, wanted)
    tensors: list[torch.Tensor | None] = list(rows.tensors)
    strides = list(rows.strides)
    for position, output in enumerate(outputs, start=len(inputs)):
        if output is None:
            tensors.insert(position, None)
            strides.insert(position, (0, 0, 0))
    launch(
        getattr(load_kernels(module, target.backend), f"{name}_rows_kernel"),
        programs(target, plan.tiles(rows.blocks, rows.inner, n_cols), persistent=False),
        target,
        first,
        *tensors,
        rows.outer,
        rows.middle,
        rows.inner,
        *(stride for levels in strides for stride in levels),
        num_warps=plan.num_warps,
        n_cols=n_cols,
        ROWS=plan.rows,
        COLS=plan.cols,
        ONE_BLOCK=rows.blocks == 1,
        **constants,
    )
    rows.write_back()


# Kept, because working it out takes longer than the rest of a launch; every number of elements has one of its own.
@functools.lru_cache(maxsize=4096)
def _flat_launch(
    module: str,
    name: str,
    target: Target,
    dtypes: tuple[torch.dtype | None, ...],
    elements: int,
    aligned: bool,
    buffers: tuple[Buffer, ...],
    constants: tuple[tuple[str, Any], ...],
) -> Launch:
    """For tensors of these `dtypes`, which Triton compiles for."""
    plan = plan_flat(target, buffers)
    return Launch(
        module, f"{name}_kernel", programs(target, -(-elements // plan.block), persistent=False), target, (elements,),
        num_warps=plan.num_warps, BLOCK=plan.block, ALIGNED=aligned, ONE_TILE=target.backend == "cuda", **dict(constants),
    )  # fmt: skip


def halves(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two halves of the last dimension, as views."""
    width = packed.shape[-1] // 2
    return packed.narrow(-1, 0, width), packed.narrow(-1, width, width)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    return tensor.permute(*sorted(range(tensor.dim()), key=tensor.stride, reverse=True)).is_contiguous()
