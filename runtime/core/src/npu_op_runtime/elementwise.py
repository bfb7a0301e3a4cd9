"""Launches an element-wise kernel over tensors of one shape: flat over memory where their layouts agree, by rows otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .device import target_of
from .launch import launch, load_kernels
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
    kernels = load_kernels(module, target.backend)
    if all(tensor.stride() == first.stride() for tensor in (*inputs, *wanted)) and is_dense(first):
        flat = plan_flat(target, buffers)
        grid = programs(target, -(-first.numel() // flat.block), persistent=False)
        kernel = getattr(kernels, f"{name}_kernel")
        aligned = first.dim() > 0 and first.shape[-1] % ALIGNMENT == 0
        launch(
            kernel, grid, target, first, *inputs, *outputs, first.numel(),
            num_warps=flat.num_warps, BLOCK=flat.block, ALIGNED=aligned, ONE_TILE=target.backend == "cuda", **constants,
        )  # fmt: skip
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
        getattr(kernels, f"{name}_rows_kernel"),
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


def halves(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two halves of the last dimension, as views."""
    width = packed.shape[-1] // 2
    return packed.narrow(-1, 0, width), packed.narrow(-1, width, width)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    return tensor.permute(*sorted(range(tensor.dim()), key=tensor.stride, reverse=True)).is_contiguous()
