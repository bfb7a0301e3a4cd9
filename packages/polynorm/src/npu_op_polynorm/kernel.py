"""Kernels of PolyNorm. With r_k = 1 / sqrt(mean(x^2k) + eps): y = w0 * r3 * x^3 + w1 * r2 * x^2 + w2 * r1 * x + b.

Layout of every kernel: tiles of ROWS rows (or, with FOLD > 1, of one row in FOLD pieces), a contiguous chunk of rows per
program, tile bases as int64 scalars and offsets inside a tile as int32. Arithmetic is fp32, rounded once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_arguments, row_sum, row_tile


@triton.jit
def _polynomial(x, r1, r2, r3, w0, w1, w2, bias):
    """The output of a tile; r1 to r3 hold one value per tile row."""
    return x * (x * (x * (r3 * w0)[:, None] + (r2 * w1)[:, None]) + (r1 * w2)[:, None]) + bias


@triton.jit
def _weights(WEIGHT, BIAS, HAS_BIAS: tl.constexpr):
    w0 = tl.load(WEIGHT).to(tl.float32)
    w1 = tl.load(WEIGHT + 1).to(tl.float32)
    w2 = tl.load(WEIGHT + 2).to(tl.float32)
    if HAS_BIAS:
        return w0, w1, w2, tl.load(BIAS).to(tl.float32)
    else:
        return w0, w1, w2, 0.0


@triton.jit(do_not_specialize=row_arguments("x", "y", "stat"))
def poly_norm_forward_kernel(
    X, WEIGHT, BIAS, Y, R1, R2, R3, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    stat_outer, stat_middle, stat_row, eps,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
    HAS_BIAS: tl.constexpr, SAVE: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x, write y (+ 12 bytes of statistics per row)."""
    if DENSE:
        x_row = n_cols
        y_row = n_cols
        stat_row = 1
    lane = tl.arange(0, ROWS * FOLD)
    cols = tl.arange(0, COLS)
    piece = lane[:, None] * COLS + cols[None, :]
    w0, w1, w2, bias = _weights(WEIGHT, BIAS, HAS_BIAS)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK, ONE_TILE)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK)
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK)
        if FOLD > 1:
            x = tl.load(x_base + piece).to(tl.float32)
        else:
            mask = (lane < remaining)[:, None] & (cols < n_cols)[None, :]
            x = tl.load(x_base + lane[:, None] * x_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        square = x * x
        r1 = 1.0 / tl.sqrt(row_sum(square, FOLD) * (1.0 / n_cols) + eps)
        fourth = square * square
        r2 = 1.0 / tl.sqrt(row_sum(fourth, FOLD) * (1.0 / n_cols) + eps)
        r3 = 1.0 / tl.sqrt(row_sum(fourth * square, FOLD) * (1.0 / n_cols) + eps)
        y = _polynomial(x, r1, r2, r3, w0, w1, w2, bias).to(Y.dtype.element_ty)
        if FOLD > 1:
            tl.store(y_base + piece, y)
        else:
            tl.store(y_base + lane[:, None] * y_row + cols[None, :], y, mask=mask)
        if SAVE:
            # Every piece holds the row's statistics; the first one stores them.
            own = lane < 1 if FOLD > 1 else lane < remaining
            stat = row_address(R1, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            tl.store(stat + lane * stat_row, r1, mask=own)
            stat = row_address(R2, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            tl.store(stat + lane * stat_row, r2, mask=own)
            stat = row_address(R3, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            tl.store(stat + lane * stat_row, r3, mask=own)


@triton.jit(do_not_specialize=row_arguments("x", "y", "stat"))
def poly_norm_forward_wide_kernel(
    X, WEIGHT, BIAS, Y, R1, R2, R3, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    stat_outer, stat_middle, stat_row, eps,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB, in column tiles. Moves: read x twice (the second time from L2), write y."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    w0, w1, w2, bias = _weights(WEIGHT, BIAS, HAS_BIAS)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + lane[:, None] * x_row
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK) + lane[:, None] * y_row
        # Powers are added across tiles as tiles and reduced once.
        squares = tl.zeros((ROWS, COLS), tl.float32)
        fourths = tl.zeros((ROWS, COLS), tl.float32)
        sixths = tl.zeros((ROWS, COLS), tl.float32)
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            square = x * x
            squares += square
            fourths += square * square
            sixths += square * square * square
        r1 = 1.0 / tl.sqrt(tl.sum(squares, axis=1) * (1.0 / n_cols) + eps)
        r2 = 1.0 / tl.sqrt(tl.sum(fourths, axis=1) * (1.0 / n_cols) + eps)
        r3 = 1.0 / tl.sqrt(tl.sum(sixths, axis=1) * (1.0 / n_cols) + eps)
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            y = _polynomial(x, r1, r2, r3, w0, w1, w2, bias)
            tl.store(y_base + (start + cols)[None, :], y.to(Y.dtype.element_ty), mask=mask)
        if SAVE:
            stat = row_address(R1, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            tl.store(stat + lane * stat_row, r1, mask=exists)
            stat = row_address(R2, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            tl.store(stat + lane * stat_row, r2, mask=exists)
            stat = row_address(R3, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            tl.store(stat + lane * stat_row, r3, mask=exists)


@triton.jit
def _dx(x, square, dy, r1, r2, r3, s1, s2, s3, w0, w1, w2):
    """Sum over k of k * x^(k-1) * w * r_k * (dy - x^k * r_k * s_k), with s_k = mean(dy * x^k) * r_k."""
    first, second, third = r1 * w2, r2 * (2.0 * w1), r3 * (3.0 * w0)
    slope = x * (x * third[:, None] + second[:, None]) + first[:, None]
    rest = square * (square * (third * r3 * s3)[:, None] + (second * r2 * s2)[:, None]) + (first * r1 * s1)[:, None]
    return dy * slope - x * rest


@triton.jit
def _store_sums(PARTIALS, d1, d2, d3, d0, COPIES: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr):
    """A program's partial gradients of w0, w1, w2 and the bias, those that are needed; COPIES lanes hold each row's."""
    base = PARTIALS + tl.program_id(0) * (3 * NEED_DWEIGHT + NEED_DBIAS) + tl.arange(0, 1)
    if NEED_DWEIGHT:
        tl.store(base, tl.sum(d3[None, :], axis=1) * (1.0 / COPIES))
        tl.store(base + 1, tl.sum(d2[None, :], axis=1) * (1.0 / COPIES))
        tl.store(base + 2, tl.sum(d1[None, :], axis=1) * (1.0 / COPIES))
    if NEED_DBIAS:
        tl.store(base + 3 * NEED_DWEIGHT, tl.sum(d0[None, :], axis=1) * (1.0 / COPIES))


@triton.jit(do_not_specialize=row_arguments("x", "dy", "dx", "stat"))
def poly_norm_backward_kernel(
    X, WEIGHT, DY, R1, R2, R3, DX, PARTIALS, outer, middle, inner, x_outer, x_middle, x_row, dy_outer, dy_middle, dy_row,
    dx_outer, dx_middle, dx_row, stat_outer, stat_middle, stat_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
    NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x and dy, write dx, four fp32 partial sums per program."""
    if DENSE:
        x_row = n_cols
        dy_row = n_cols
        dx_row = n_cols
        stat_row = 1
    lane = tl.arange(0, ROWS * FOLD)
    cols = tl.arange(0, COLS)
    piece = lane[:, None] * COLS + cols[None, :]
    w0, w1, w2, _bias = _weights(WEIGHT, WEIGHT, False)
    d0 = tl.zeros((ROWS * FOLD,), tl.float32)
    d1 = tl.zeros((ROWS * FOLD,), tl.float32)
    d2 = tl.zeros((ROWS * FOLD,), tl.float32)
    d3 = tl.zeros((ROWS * FOLD,), tl.float32)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK)
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK)
        r1_base = row_address(R1, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        r2_base = row_address(R2, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        r3_base = row_address(R3, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        if FOLD > 1:
            r1 = tl.load(r1_base + 0 * lane)
            r2 = tl.load(r2_base + 0 * lane)
            r3 = tl.load(r3_base + 0 * lane)
            x = tl.load(x_base + piece).to(tl.float32)
            dy = tl.load(dy_base + piece).to(tl.float32)
        else:
            exists = lane < remaining
            mask = exists[:, None] & (cols < n_cols)[None, :]
            r1 = tl.load(r1_base + lane * stat_row, mask=exists, other=0.0)
            r2 = tl.load(r2_base + lane * stat_row, mask=exists, other=0.0)
            r3 = tl.load(r3_base + lane * stat_row, mask=exists, other=0.0)
            x = tl.load(x_base + lane[:, None] * x_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + lane[:, None] * dy_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        square = x * x
        product = dy * x
        s1 = row_sum(product, FOLD) * r1
        s2 = row_sum(product * x, FOLD) * r2
        s3 = row_sum(product * square, FOLD) * r3
        if NEED_DBIAS:
            d0 += row_sum(dy, FOLD)
        if NEED_DWEIGHT:
            d1 += s1
            d2 += s2
            d3 += s3
        if NEED_DX:
            dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK)
            dx = _dx(x, square, dy, r1, r2, r3, s1 * (1.0 / n_cols), s2 * (1.0 / n_cols), s3 * (1.0 / n_cols), w0, w1, w2)
            if FOLD > 1:
                tl.store(dx_base + piece, dx.to(DX.dtype.element_ty))
            else:
                tl.store(dx_base + lane[:, None] * dx_row + cols[None, :], dx.to(DX.dtype.element_ty), mask=mask)
    _store_sums(PARTIALS, d1, d2, d3, d0, FOLD, NEED_DWEIGHT, NEED_DBIAS)


@triton.jit(do_not_specialize=row_arguments("x", "dy", "dx", "stat"))
def poly_norm_backward_wide_kernel(
    X, WEIGHT, DY, R1, R2, R3, DX, PARTIALS, outer, middle, inner, x_outer, x_middle, x_row, dy_outer, dy_middle, dy_row,
    dx_outer, dx_middle, dx_row, stat_outer, stat_middle, stat_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
    NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB, in column tiles. Moves: read x and dy twice (the second time from L2), write dx, four sums per program."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    w0, w1, w2, _bias = _weights(WEIGHT, WEIGHT, False)
    d0 = tl.zeros((ROWS,), tl.float32)
    d1 = tl.zeros((ROWS,), tl.float32)
    d2 = tl.zeros((ROWS,), tl.float32)
    d3 = tl.zeros((ROWS,), tl.float32)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + lane[:, None] * x_row
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK) + lane[:, None] * dy_row
        r1_base = row_address(R1, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        r2_base = row_address(R2, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        r3_base = row_address(R3, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        r1 = tl.load(r1_base + lane * stat_row, mask=exists, other=0.0)
        r2 = tl.load(r2_base + lane * stat_row, mask=exists, other=0.0)
        r3 = tl.load(r3_base + lane * stat_row, mask=exists, other=0.0)
        sum0 = tl.zeros((ROWS,), tl.float32)
        sum1 = tl.zeros((ROWS,), tl.float32)
        sum2 = tl.zeros((ROWS,), tl.float32)
        sum3 = tl.zeros((ROWS,), tl.float32)
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            sum0 += tl.sum(dy, axis=1)
            product = dy * x
            sum1 += tl.sum(product, axis=1)
            product = product * x
            sum2 += tl.sum(product, axis=1)
            sum3 += tl.sum(product * x, axis=1)
        s1 = sum1 * r1
        s2 = sum2 * r2
        s3 = sum3 * r3
        d0 += sum0
        d1 += s1
        d2 += s2
        d3 += s3
        if NEED_DX:
            dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK) + lane[:, None] * dx_row
            for start in range(0, n_cols, COLS):
                mask = exists[:, None] & (start + cols < n_cols)[None, :]
                x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
                dy = tl.load(dy_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
                dx = _dx(x, x * x, dy, r1, r2, r3, s1 * (1.0 / n_cols), s2 * (1.0 / n_cols), s3 * (1.0 / n_cols), w0, w1, w2)
                tl.store(dx_base + (start + cols)[None, :], dx.to(DX.dtype.element_ty), mask=mask)
    _store_sums(PARTIALS, d1, d2, d3, d0, 1, NEED_DWEIGHT, NEED_DBIAS)
