"""Kernels of softmax over rows.

Layout of every kernel: tiles of ROWS rows (or, with FOLD > 1, of one row in FOLD pieces), a contiguous chunk of rows per
program, tile bases as int64 scalars and offsets inside a tile as int32. Arithmetic is fp32, rounded once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_arguments, row_max, row_sum, row_tile

# Below every finite fp32: a start for running maxima that, unlike -inf, can be subtracted from -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit(do_not_specialize=row_arguments("x", "y"))
def softmax_forward_kernel(
    X, Y, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x, write y."""
    if DENSE:
        x_row = n_cols
        y_row = n_cols
    lane = tl.arange(0, ROWS * FOLD)
    cols = tl.arange(0, COLS)
    piece = lane[:, None] * COLS + cols[None, :]
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK)
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK)
        if FOLD > 1:
            x = tl.load(x_base + piece).to(tl.float32)
        else:
            mask = (lane < remaining)[:, None] & (cols < n_cols)[None, :]
            x = tl.load(x_base + lane[:, None] * x_row + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
        e = tl.exp(x - row_max(x, FOLD)[:, None])
        y = (e * (1.0 / row_sum(e, FOLD))[:, None]).to(Y.dtype.element_ty)
        if FOLD > 1:
            tl.store(y_base + piece, y)
        else:
            tl.store(y_base + lane[:, None] * y_row + cols[None, :], y, mask=mask)


@triton.jit(do_not_specialize=row_arguments("x", "y"))
def softmax_forward_wide_kernel(
    X, Y, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB, in column tiles: maximum and sum in one pass. Moves: read x twice (the second time from L2), write y."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + lane[:, None] * x_row
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK) + lane[:, None] * y_row
        highest = tl.zeros((ROWS,), tl.float32) + LOWEST
        total = tl.zeros((ROWS,), tl.float32)
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(x, axis=1))
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher[:, None]), axis=1)
            highest = higher
        scale = 1.0 / total
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            y = tl.exp(x - highest[:, None]) * scale[:, None]
            tl.store(y_base + (start + cols)[None, :], y.to(Y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("y", "dy", "dx"))
def softmax_backward_kernel(
    Y, DY, DX, outer, middle, inner, y_outer, y_middle, y_row, dy_outer, dy_middle, dy_row, dx_outer, dx_middle, dx_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """dx = y * (dy - sum(dy * y)), whole rows resident. Moves: read y and dy, write dx."""
    if DENSE:
        y_row = n_cols
        dy_row = n_cols
        dx_row = n_cols
    lane = tl.arange(0, ROWS * FOLD)
    cols = tl.arange(0, COLS)
    piece = lane[:, None] * COLS + cols[None, :]
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK)
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK)
        dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK)
        if FOLD > 1:
            y = tl.load(y_base + piece).to(tl.float32)
            dy = tl.load(dy_base + piece).to(tl.float32)
        else:
            mask = (lane < remaining)[:, None] & (cols < n_cols)[None, :]
            y = tl.load(y_base + lane[:, None] * y_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + lane[:, None] * dy_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        dx = (y * (dy - row_sum(dy * y, FOLD)[:, None])).to(DX.dtype.element_ty)
        if FOLD > 1:
            tl.store(dx_base + piece, dx)
        else:
            tl.store(dx_base + lane[:, None] * dx_row + cols[None, :], dx, mask=mask)


@triton.jit(do_not_specialize=row_arguments("y", "dy", "dx"))
def softmax_backward_wide_kernel(
    Y, DY, DX, outer, middle, inner, y_outer, y_middle, y_row, dy_outer, dy_middle, dy_row, dx_outer, dx_middle, dx_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """dx of rows wider than UB, in column tiles. Moves: read y and dy twice (the second time from L2), write dx."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK) + lane[:, None] * y_row
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK) + lane[:, None] * dy_row
        dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK) + lane[:, None] * dx_row
        # Products are added across tiles as a tile and reduced once.
        products = tl.zeros((ROWS, COLS), tl.float32)
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            y = tl.load(y_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            products += dy * y
        total = tl.sum(products, axis=1)[:, None]
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            y = tl.load(y_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            tl.store(dx_base + (start + cols)[None, :], (y * (dy - total)).to(DX.dtype.element_ty), mask=mask)
