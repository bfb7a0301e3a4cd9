"""The second reduction of parameter gradients: per-program fp32 partial sums to one row, without atomics, so bitwise repeatable."""

from __future__ import annotations

import functools

import torch

from .device import Target
from .launch import Launch
from .tiling import next_power_of_2, programs

# Rows of a tile: with 256 columns of fp32 a transfer of 16 KiB, and few trips for as many rows as an NPU has cores.
_ROWS = 16

# A tile of fewer fp32 columns would be padded to a UB block anyway.
_MIN_SCALAR = 8


def sum_partials(
    partials: torch.Tensor, dtype: torch.dtype, target: Target, *, scalar: torch.Tensor | None = None, scalar_columns: int = 0
) -> torch.Tensor:
    """Column sums of `partials` (programs, n) fp32, added in row order, rounded once to `dtype`; shape (n - scalar_columns,).

    The last `scalar_columns` columns are added up, in a fixed order too, into the one element of `scalar`, in its dtype: the gradient of
    a parameter of one element beside those of the columns, in the same launch.
    """
    count, pitch = partials.shape
    width = pitch - scalar_columns
    if count == 1 and scalar is None:  # so few rows that one program took them all: nothing to add, and no second launch
        return partials[0].to(dtype)
    out = torch.empty(width, dtype=dtype, device=partials.device)
    if count == 0:
        if scalar is not None:
            scalar.zero_()
        return out.zero_()
    _launch_of(target, count, width, scalar_columns, dtype, None if scalar is None else scalar.dtype)(partials, out, scalar)
    return out


@functools.cache
def _launch_of(target: Target, count: int, width: int, scalar_columns: int, dtype: torch.dtype, scalar: torch.dtype | None) -> Launch:
    """For results of these dtypes, which Triton compiles for."""
    block = _block_for(width, target.cores)
    tiles = -(-width // block)
    grid = programs(target, tiles if scalar is None else max(tiles, 1), persistent=False)
    return Launch(
        "npu_op_runtime.partials_kernel", "sum_partials_kernel", grid, target, (count, width, scalar_columns),
        ROWS=_ROWS, BLOCK=block, SCALAR=0 if scalar is None else next_power_of_2(max(scalar_columns, _MIN_SCALAR)),
    )  # fmt: skip


def sums_dtype(*wanted: tuple[torch.Tensor | None, bool]) -> torch.dtype:
    """Of one tensor for the gradients of several parameters, so that one kernel adds up the partial sums of all: theirs if it is one.

    Args:
        wanted: each parameter, and whether its gradient is wanted.
    """
    dtypes = {parameter.dtype for parameter, need in wanted if need and parameter is not None}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _block_for(width: int, cores: int) -> int:
    # Spread the columns over the cores, in pieces of 128 to 512 elements, powers of two for CUDA.
    return min(512, max(128, 1 << (max(1, width // cores) - 1).bit_length()))
