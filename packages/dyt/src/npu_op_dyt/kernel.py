"""Kernels of Dynamic Tanh: element by element, so each program owns a strip of columns and walks its share of the rows.

The parameters of a strip stay in UB, and so do the sums of its gradients, whatever the width of a row. tanh needs one exp:
tanh(u) = 1 + r with r = -2 / (1 + exp(2u)), and its slope is 1 - tanh(u)^2 = -r * (2 + r).
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import row_address, row_arguments, row_tile


@triton.jit
def _my_rows(chunk, chunks, blocks, inner, ROWS: tl.constexpr, ONE_BLOCK: tl.constexpr):
    """`tiles.my_rows` for one of `chunks` shares: rows if there is one block, else tiles."""
    if ONE_BLOCK:
        items = inner
    else:
        items = blocks * tl.cdiv(inner, ROWS)
    share = items // chunks
    extra = items - share * chunks
    first = chunk * share + tl.minimum(chunk, extra)
    last = first + share + (chunk < extra).to(tl.int32)
    if ONE_BLOCK:
        trips = tl.cdiv(last - first, ROWS)
    else:
        trips = last - first
    return first, last, trips


@triton.jit
def _strip(strip, n_cols: tl.constexpr, COLS: tl.constexpr, STRIPS: tl.constexpr, OVERLAP: tl.constexpr):
    """First column of a strip, and one past its last own column, counted from the first.

    With OVERLAP every strip reads COLS columns that exist: strips are counted from the right, and the first one, whose own are
    fewer, reads on into the next.
    """
    if OVERLAP:
        end = n_cols - (STRIPS - 1 - strip) * COLS
        column = tl.maximum(end - COLS, 0)
        return column, end - column
    else:
        return strip * COLS, n_cols - strip * COLS


@triton.jit
def _parameter(POINTER, columns, own):
    return tl.load(POINTER + columns, mask=own, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["chunks", *row_arguments("x", "y")])
def dyt_forward_kernel(
    X, ALPHA, GAMMA, BETA, Y, chunks, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STRIPS: tl.constexpr, OVERLAP: tl.constexpr, ONE_BLOCK: tl.constexpr,
    HAS_BETA: tl.constexpr,
):  # fmt: skip
    """Moves: read x, write y, gamma and beta once per program.

    gamma * tanh(u) + beta = (gamma + beta) - 2 * gamma / (1 + exp(2u)): what does not depend on the row comes before the rows.
    """
    chunk = tl.program_id(0) // STRIPS
    first, last, trips = _my_rows(chunk, chunks, outer * middle, inner, ROWS, ONE_BLOCK)
    column, owned = _strip(tl.program_id(0) - chunk * STRIPS, n_cols, COLS, STRIPS, OVERLAP)
    lane = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    inside = cols < n_cols - column
    twice_alpha = tl.load(ALPHA).to(tl.float32) * 2.0
    gamma = _parameter(GAMMA + column, cols, inside)
    limit = gamma + _parameter(BETA + column, cols, inside) if HAS_BETA else gamma
    minus_twice_gamma = gamma * -2.0
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_at = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + column + (lane * x_row + cols)
        y_at = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK) + column + (lane * y_row + cols)
        x = tl.load(x_at, mask=(lane < remaining) & inside, other=0.0).to(tl.float32)
        y = minus_twice_gamma / (tl.exp(x * twice_alpha) + 1.0) + limit
        tl.store(y_at, y.to(Y.dtype.element_ty), mask=(lane < remaining) & (cols < owned))


@triton.jit(do_not_specialize=["chunks", *row_arguments("x", "dy", "dx")])
def dyt_backward_kernel(
    X, ALPHA, GAMMA, DY, DX, PARTIALS, chunks, outer, middle, inner, x_outer, x_middle, x_row, dy_outer, dy_middle, dy_row,
    dx_outer, dx_middle, dx_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STRIPS: tl.constexpr, OVERLAP: tl.constexpr, ONE_BLOCK: tl.constexpr,
    NEED_DX: tl.constexpr, NEED_DALPHA: tl.constexpr, NEED_DGAMMA: tl.constexpr, NEED_DBETA: tl.constexpr,
):  # fmt: skip
    """Moves: read x and dy, write dx, one fp32 row of partial sums per share of the rows.

    With s = dy * gamma * (1 - tanh^2): dx = alpha * s, dalpha = sum of x * s, dbeta = sum over rows of dy,
    dgamma = sum over rows of dy * tanh = dbeta + sum over rows of dy * r.
    A row of partial sums is dgamma, dbeta, then dalpha of each strip.
    """
    chunk = tl.program_id(0) // STRIPS
    strip = tl.program_id(0) - chunk * STRIPS
    first, last, trips = _my_rows(chunk, chunks, outer * middle, inner, ROWS, ONE_BLOCK)
    column, owned = _strip(strip, n_cols, COLS, STRIPS, OVERLAP)
    lane = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    own = cols < owned
    inside = cols < n_cols - column
    alpha = tl.load(ALPHA).to(tl.float32)
    # 0 in columns of the next strip, which dalpha then leaves out.
    gamma = _parameter(GAMMA + column, cols, own)
    minus_alpha_gamma = gamma * -alpha
    # A sum for each row of the tile: plain additions, with one reduction at the end.
    dalpha = tl.zeros((ROWS, COLS), tl.float32)
    dgamma = tl.zeros((ROWS, COLS), tl.float32)
    dbeta = tl.zeros((ROWS, COLS), tl.float32)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        mask = (lane < remaining) & inside
        x_at = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + column + (lane * x_row + cols)
        dy_at = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK) + column + (lane * dy_row + cols)
        x = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_at, mask=mask, other=0.0).to(tl.float32)
        r = -2.0 / (tl.exp(x * (2.0 * alpha)) + 1.0)
        if NEED_DGAMMA or NEED_DBETA:
            dbeta += dy
        product = dy * r
        if NEED_DGAMMA:
            dgamma += product
        if NEED_DX or NEED_DALPHA:
            # Minus dy * (1 - tanh^2): gamma comes once per row of the tile, once per sum, and brings the sign.
            slope = product * (r + 2.0)
            if NEED_DALPHA:
                dalpha += x * slope
            if NEED_DX:
                dx_at = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK) + column + (lane * dx_row + cols)
                dx = slope * minus_alpha_gamma
                tl.store(dx_at, dx.to(DX.dtype.element_ty), mask=(lane < remaining) & own)
    partials = PARTIALS + chunk * (n_cols * (NEED_DGAMMA + NEED_DBETA) + STRIPS * NEED_DALPHA)
    columns = tl.arange(0, COLS)
    if NEED_DGAMMA or NEED_DBETA:
        sums = tl.sum(dbeta, axis=0)
        if NEED_DGAMMA:
            tl.store(partials + column + columns, tl.sum(dgamma, axis=0) + sums, mask=columns < owned)
        if NEED_DBETA:
            tl.store(partials + n_cols * NEED_DGAMMA + column + columns, sums, mask=columns < owned)
    if NEED_DALPHA:
        total = tl.sum(tl.sum(dalpha, axis=0)[None, :] * (gamma * -1.0), axis=1)
        tl.store(partials + n_cols * (NEED_DGAMMA + NEED_DBETA) + strip + tl.arange(0, 1), total)
