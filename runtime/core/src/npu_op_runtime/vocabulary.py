"""Tiles of kernels that walk rows as wide as a vocabulary in column tiles, with accumulators as wide as a tile.

An accumulator per lane needs no reduction until the row ends, so the columns may be as many as UB holds; the rows of a tile stay few,
because what a kernel does for each row by itself (the target's logit) is unrolled.
"""

from __future__ import annotations

import functools

from .device import Target
from .tiling import UB_BLOCK_BYTES, Buffer, RowPlan, _rows_that_fit, next_power_of_2

MAX_ROWS = 4

# CUDA: 16 elements of a tile for each thread of 8 warps, all of one row where it is wide enough.
_CUDA_COLS = 4096
_CUDA_ELEMENTS_PER_WARP = 512


@functools.cache
def plan_vocabulary(target: Target, n_cols: int, buffers: tuple[Buffer, ...], *, fewest: int = 2) -> RowPlan:
    """The widest tile of at least `fewest` rows (one on CUDA) and at most `MAX_ROWS`, a row in even pieces; `resident`: one piece.

    Two, where rows are reduced; one, where they are not, leaves no tile half empty at the end of an odd number of rows.

    Raises:
        ValueError: `n_cols` below 1, or not even `fewest` rows of a 32-byte block fit UB.
    """
    if n_cols < 1:
        raise ValueError(f"n_cols must be at least 1 (got {n_cols})")
    if target.backend == "cuda":
        cols = min(next_power_of_2(n_cols), _CUDA_COLS)
        rows = max(1, min(MAX_ROWS, _CUDA_COLS // 2 // cols))
        return RowPlan(rows, 1, cols, resident=cols >= n_cols, num_warps=max(1, rows * cols // _CUDA_ELEMENTS_PER_WARP))
    granule = UB_BLOCK_BYTES // min(buffer.itemsize for buffer in buffers)
    for pieces in range(1, n_cols // granule + 2):
        cols = -(-n_cols // (pieces * granule)) * granule
        rows = _rows_that_fit(target, cols, buffers)
        if rows >= fewest:
            return RowPlan(min(rows, MAX_ROWS), 1, cols, resident=pieces == 1)
    raise ValueError(f"no tile of {n_cols} columns fits the UB of {target.ub_bytes} bytes")
