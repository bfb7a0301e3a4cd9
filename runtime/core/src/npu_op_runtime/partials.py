"""The second reduction of parameter gradients: per-program fp32 partial sums to one row, without atomics, so bitwise repeatable."""

from __future__ import annotations

import torch

from .device import Target
from .launch import launch, load_kernels
from .tiling import programs

# Rows of a tile: with 256 columns of fp32 a transfer of 16 KiB, and few trips for as many rows as an NPU has cores.
_ROWS = 16


def sum_partials(partials: torch.Tensor, dtype: torch.dtype, target: Target) -> torch.Tensor:
    """Column sums of `partials` (programs, n) fp32, added in row order, rounded once to `dtype`; shape (n,)."""
    count, width = partials.shape
    out = torch.empty(width, dtype=dtype, device=partials.device)
    if count == 0:
        return out.zero_()
    block = _block_for(width, target.cores)
    kernels = load_kernels("npu_op_runtime.partials_kernel", target.backend)
    grid = programs(target, -(-width // block), persistent=False)
    launch(kernels.sum_partials_kernel, grid, target, partials, partials, out, count, width, ROWS=_ROWS, BLOCK=block)
    return out


def _block_for(width: int, cores: int) -> int:
    # Spread the columns over the cores, in pieces of 128 to 512 elements, powers of two for CUDA.
    return min(512, max(128, 1 << (max(1, width // cores) - 1).bit_length()))
