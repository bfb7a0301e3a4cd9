"""Kernels of MyOp: x * sigmoid(x), flat over contiguous memory or over strided rows."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import known_multiple, my_chunk, my_elements, piece_tile, row_address, row_arguments


@triton.jit
def _value(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _gradient(dy, x):
    """dx = dy * s * (1 + x * (1 - s)) with s the sigmoid of x; neither s nor 1 - s is the difference of two numbers near 1."""
    # A numerator of 1 would be multiplied into what follows, as a division each time; -1 and 0.5 are not.
    rest = -1.0 / (tl.exp(x) + 1.0)  # s - 1
    dy_sigmoid = dy * (0.5 / (tl.exp(-x) * 0.5 + 0.5))
    return dy_sigmoid - dy_sigmoid * (x * rest)


@triton.jit(do_not_specialize=["elements"])
def my_op_forward_kernel(X, Y, elements, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, ONE_TILE: tl.constexpr):
    """Contiguous. Moves: read x, write y."""
    if ALIGNED:
        elements = known_multiple(elements)
    lane = tl.arange(0, BLOCK)
    first, last, trips = my_elements(elements, BLOCK, ONE_TILE)
    for trip in range(trips):
        base = first + tl.cast(trip, tl.int64) * BLOCK
        mask = lane < tl.minimum(last - base, BLOCK).to(tl.int32)
        x = tl.load(X + base + lane, mask=mask, other=0.0).to(tl.float32)
        tl.store(Y + base + lane, _value(x).to(Y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["elements"])
def my_op_backward_kernel(DY, X, DX, elements, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, ONE_TILE: tl.constexpr):
    """Contiguous. Moves: read dy and x, write dx."""
    if ALIGNED:
        elements = known_multiple(elements)
    lane = tl.arange(0, BLOCK)
    first, last, trips = my_elements(elements, BLOCK, ONE_TILE)
    for trip in range(trips):
        base = first + tl.cast(trip, tl.int64) * BLOCK
        mask = lane < tl.minimum(last - base, BLOCK).to(tl.int32)
        dy = tl.load(DY + base + lane, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(X + base + lane, mask=mask, other=0.0).to(tl.float32)
        tl.store(DX + base + lane, _gradient(dy, x).to(DX.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("x", "y"))
def my_op_forward_rows_kernel(
    X, Y, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Strided rows. Moves: read x, write y."""
    lane = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    first, last = my_chunk(outer * middle * tl.cdiv(inner, ROWS) * ((n_cols + COLS - 1) // COLS))
    for tile in range(first, last):
        block, row, column = piece_tile(tile, inner, n_cols, ROWS, COLS)
        mask = (lane < inner - row) & (cols < n_cols - column)
        x_at = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + column + (lane * x_row + cols)
        y_at = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK) + column + (lane * y_row + cols)
        x = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_at, _value(x).to(Y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("dy", "x", "dx"))
def my_op_backward_rows_kernel(
    DY, X, DX, outer, middle, inner, dy_outer, dy_middle, dy_row, x_outer, x_middle, x_row, dx_outer, dx_middle, dx_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Strided rows. Moves: read dy and x, write dx."""
    lane = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    first, last = my_chunk(outer * middle * tl.cdiv(inner, ROWS) * ((n_cols + COLS - 1) // COLS))
    for tile in range(first, last):
        block, row, column = piece_tile(tile, inner, n_cols, ROWS, COLS)
        mask = (lane < inner - row) & (cols < n_cols - column)
        dy_at = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK) + column + (lane * dy_row + cols)
        x_at = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + column + (lane * x_row + cols)
        dx_at = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK) + column + (lane * dx_row + cols)
        dy = tl.load(dy_at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_at, _gradient(dy, x).to(DX.dtype.element_ty), mask=mask)
