"""Kernels of LayerNorm.

Layout of every kernel: tiles of ROWS rows (with FOLD > 1 each of them in FOLD pieces of COLS), a contiguous chunk of rows per
program, tile bases as int64 scalars and offsets inside a tile as int32. Rows are centred before they are squared.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_arguments, row_tile


@triton.jit
def _parameter(POINTER, offsets, inside, GIVEN: tl.constexpr, MASKED: tl.constexpr):
    if GIVEN:
        if MASKED:
            value = tl.load(POINTER + offsets, mask=inside, other=0.0)
        else:
            value = tl.load(POINTER + offsets)
        return value.to(tl.float32)
    else:
        return 0.0


@triton.jit
def _affine(centred, rstd, weight, bias, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr):
    # Weight before rstd: fewer operands meet in a bank group of UB than the other way round.
    if HAS_WEIGHT:
        centred = centred * weight
    y = centred * rstd
    if HAS_BIAS:
        y = y + bias
    return y


@triton.jit
def _centred(x, mean, inside, PADDED: tl.constexpr):
    """x - mean; PADDED columns stay 0, or they would enter the variance."""
    if PADDED:
        return tl.where(inside, x - mean, 0.0)
    else:
        return x - mean


@triton.jit
def _row_sum(x, ROWS: tl.constexpr, FOLD: tl.constexpr):
    """Sum of each row of a tile; of rows in pieces, ROWS x FOLD x COLS, once for each piece: so nothing is broadcast along two axes."""
    if FOLD > 1:
        pieces = tl.sum(x, axis=2)
        return tl.sum(tl.broadcast_to(pieces[:, None, :], (ROWS, FOLD, FOLD)), axis=2)
    else:
        return tl.sum(x, axis=1)


@triton.jit
def _beside(values, FOLD: tl.constexpr):
    """What `_row_sum` gives, as an operand of its tile."""
    if FOLD > 1:
        return values[:, :, None]
    else:
        return values[:, None]


@triton.jit
def _row_sums(x, y, FOLD: tl.constexpr):
    """`row_sum` of two tiles, step by step side by side: a step of one does not wait for the other's, as it does for its own last one."""
    x = tl.sum(x, axis=1)
    y = tl.sum(y, axis=1)
    if FOLD > 1:
        x = tl.broadcast_to(x[None, :], (FOLD, FOLD))
        y = tl.broadcast_to(y[None, :], (FOLD, FOLD))
        x = tl.sum(x, axis=1)
        y = tl.sum(y, axis=1)
    return x, y


@triton.jit
def _partials(PARTIALS, n_cols: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr):
    """Where this program's partial dweight and dbias go: side by side in its row, or alone."""
    base = PARTIALS + tl.program_id(0) * (n_cols * (NEED_DWEIGHT + NEED_DBIAS))
    return base, base + n_cols * NEED_DWEIGHT


@triton.jit(do_not_specialize=row_arguments("x", "y", "stat"))
def layer_norm_forward_kernel(
    X, WEIGHT, BIAS, Y, MEAN, RSTD, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    stat_outer, stat_middle, stat_row, eps,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, SAVE: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x, write y (+ 8 bytes of statistics per row), weight and bias once per program."""
    if DENSE:
        x_row = n_cols
        y_row = n_cols
        stat_row = 1
    dtype: tl.constexpr = X.dtype.element_ty
    PADDED: tl.constexpr = n_cols != FOLD * COLS
    ROOT: tl.constexpr = n_cols**0.5
    lane = tl.arange(0, ROWS)
    piece = tl.arange(0, FOLD)
    cols = tl.arange(0, COLS)
    if FOLD > 1:
        row_start = lane[:, None, None]
        column = piece[None, :, None] * COLS + cols[None, None, :]
        inside = cols[None, None, :] < COLS
    else:
        row_start = lane[:, None]
        column = cols[None, :]
        inside = cols[None, :] < n_cols
    if not ONE_TILE:
        weight = _parameter(WEIGHT, column, inside, HAS_WEIGHT, FOLD == 1)
        bias = _parameter(BIAS, column, inside, HAS_BIAS, FOLD == 1)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK, ONE_TILE)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK)
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK)
        mask = (row_start < remaining) & inside
        x = tl.load(x_base + row_start * x_row + column, mask=mask, other=0.0).to(tl.float32)
        mean = _row_sum(x, ROWS, FOLD) * (1.0 / n_cols)
        x = _centred(x, _beside(mean, FOLD), inside, PADDED)
        if dtype == tl.float32:
            # A mean far above the deviations is off by a rounding of itself: what is left of it is taken away again.
            rest = _row_sum(x, ROWS, FOLD) * (1.0 / n_cols)
            x = _centred(x, _beside(rest, FOLD), inside, PADDED)
            mean += rest
        rstd = ROOT / tl.sqrt(_row_sum(x * x, ROWS, FOLD) + n_cols * eps)
        if ONE_TILE:
            # A program of one tile (CUDA): in registers only once they are needed, which leaves room for one more program.
            weight = _parameter(WEIGHT, column, inside, HAS_WEIGHT, True)
            bias = _parameter(BIAS, column, inside, HAS_BIAS, True)
        y = _affine(x, _beside(rstd, FOLD), weight, bias, HAS_WEIGHT, HAS_BIAS).to(dtype)
        tl.store(y_base + row_start * y_row + column, y, mask=mask)
        if SAVE:
            mean_base = row_address(MEAN, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            rstd_base = row_address(RSTD, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            if FOLD > 1:
                # Every piece holds the row's statistics; the first one stores them.
                own = (lane < remaining)[:, None] & (piece < 1)[None, :]
                place = lane[:, None] * stat_row + piece[None, :]
            else:
                own = lane < remaining
                place = lane * stat_row
            tl.store(mean_base + place, mean, mask=own)
            tl.store(rstd_base + place, rstd, mask=own)


@triton.jit(do_not_specialize=row_arguments("x", "y", "stat"))
def layer_norm_forward_wide_kernel(
    X, WEIGHT, BIAS, Y, MEAN, RSTD, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row,
    stat_outer, stat_middle, stat_row, eps,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB, in column tiles, centred on the mean of their first one, the pivot.

    The variance of a row is at least 1 / tiles * (pivot - mean)^2, so taking that square away costs log2(tiles) bits at most, however
    far the mean is from 0. Moves: read x twice (the second time from L2), write y, weight and bias once per tile of rows.
    """
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + lane[:, None] * x_row
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK) + lane[:, None] * y_row
        pivot = tl.load(x_base + cols[None, :], mask=exists[:, None] & (cols < COLS)[None, :], other=0.0).to(tl.float32)
        pivot = tl.sum(pivot, axis=1) * (1.0 / COLS)
        # Added across tiles as tiles and reduced once.
        total = tl.zeros((ROWS, COLS), tl.float32)
        squares = tl.zeros((ROWS, COLS), tl.float32)
        for start in range(0, n_cols, COLS):
            inside = (start + cols < n_cols)[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=exists[:, None] & inside, other=0.0).to(tl.float32)
            x = _centred(x, pivot[:, None], inside, n_cols // COLS * COLS != n_cols)
            total += x
            squares += x * x
        shift = tl.sum(total, axis=1) * (1.0 / n_cols)
        variance = tl.sum(squares, axis=1) * (1.0 / n_cols) - shift * shift
        rstd = 1.0 / tl.sqrt(variance + eps)
        mean = pivot + shift
        if SAVE:
            mean_base = row_address(MEAN, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            rstd_base = row_address(RSTD, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
            tl.store(mean_base + lane * stat_row, mean, mask=exists)
            tl.store(rstd_base + lane * stat_row, rstd, mask=exists)
        for start in range(0, n_cols, COLS):
            inside = (start + cols < n_cols)[None, :]
            mask = exists[:, None] & inside
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            weight = _parameter(WEIGHT, (start + cols)[None, :], inside, HAS_WEIGHT, True)
            bias = _parameter(BIAS, (start + cols)[None, :], inside, HAS_BIAS, True)
            if X.dtype.element_ty == tl.float32:
                # Of a mean far above the deviations the sum of both has lost digits.
                x = x - pivot[:, None] - shift[:, None]
            else:
                x = x - mean[:, None]
            y = _affine(x, rstd[:, None], weight, bias, HAS_WEIGHT, HAS_BIAS)
            tl.store(y_base + (start + cols)[None, :], y.to(Y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("x", "dy", "dx", "stat"))
def layer_norm_backward_kernel(
    X, WEIGHT, DY, MEAN, RSTD, DX, PARTIALS, outer, middle, inner, x_outer, x_middle, x_row, dy_outer, dy_middle, dy_row,
    dx_outer, dx_middle, dx_row, stat_outer, stat_middle, stat_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x and dy, write dx, one fp32 row of partial dweight and dbias each per program.

    With c = x - mean, s = dy * rstd and g = s * weight: dx = g - mean(g) - c * rstd^2 * mean(g * c),
    dweight = sum over rows of s * c, dbias = sum over rows of dy.
    """
    if DENSE:
        x_row = n_cols
        dy_row = n_cols
        dx_row = n_cols
        stat_row = 1
    lane = tl.arange(0, ROWS * FOLD)
    cols = tl.arange(0, COLS)
    if FOLD > 1:
        piece = lane[:, None] * COLS + cols[None, :]
        inside = cols[None, :] < COLS
        weight = _parameter(WEIGHT, piece, inside, HAS_WEIGHT, False)
        dweight = tl.zeros((FOLD, COLS), tl.float32)
        dbias = tl.zeros((FOLD, COLS), tl.float32)
    else:
        inside = cols[None, :] < n_cols
        weight = _parameter(WEIGHT, cols[None, :], inside, HAS_WEIGHT, True)
        dweight = tl.zeros((COLS,), tl.float32)
        dbias = tl.zeros((COLS,), tl.float32)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK)
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK)
        mean_base = row_address(MEAN, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        rstd_base = row_address(RSTD, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        if FOLD > 1:
            mean = tl.load(mean_base)
            rstd = tl.load(rstd_base)
            x = tl.load(x_base + piece).to(tl.float32)
            dy = tl.load(dy_base + piece).to(tl.float32)
        else:
            exists = lane < remaining
            mask = exists[:, None] & inside
            mean = tl.load(mean_base + lane * stat_row, mask=exists, other=0.0)[:, None]
            rstd = tl.load(rstd_base + lane * stat_row, mask=exists, other=0.0)[:, None]
            x = tl.load(x_base + lane[:, None] * x_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + lane[:, None] * dy_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        # Columns and rows behind the mask need no care: their dy is 0, and so is every product with it.
        if NEED_DBIAS:
            if FOLD > 1:
                dbias += dy
            else:
                dbias += tl.sum(dy, axis=0)
        centred = x - mean
        scaled = dy * rstd
        product = scaled * centred
        if NEED_DWEIGHT:
            if FOLD > 1:
                dweight += product
            else:
                dweight += tl.sum(product, axis=0)
        if NEED_DX:
            dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK)
            if HAS_WEIGHT:
                scaled = scaled * weight
                product = product * weight
            level, slope = _row_sums(scaled, product, FOLD)
            level = (level * (1.0 / n_cols))[:, None]
            slope = slope[:, None] * (rstd * rstd * (1.0 / n_cols))
            dx = (scaled - level - centred * slope).to(DX.dtype.element_ty)
            if n_cols == 1:
                # A value is its own mean. Where CUDA fuses the product in `scaled` with the difference, its rounding would be left.
                dx = tl.zeros_like(dx)
            if FOLD > 1:
                tl.store(dx_base + piece, dx)
            else:
                tl.store(dx_base + lane[:, None] * dx_row + cols[None, :], dx, mask=mask)
    dweight_base, dbias_base = _partials(PARTIALS, n_cols, NEED_DWEIGHT, NEED_DBIAS)
    if FOLD > 1:
        if NEED_DWEIGHT:
            tl.store(dweight_base + piece, dweight)
        if NEED_DBIAS:
            tl.store(dbias_base + piece, dbias)
    else:
        if NEED_DWEIGHT:
            tl.store(dweight_base + cols, dweight, mask=cols < n_cols)
        if NEED_DBIAS:
            tl.store(dbias_base + cols, dbias, mask=cols < n_cols)


@triton.jit(do_not_specialize=row_arguments("x", "dy", "dx", "stat"))
def layer_norm_backward_wide_kernel(
    X, WEIGHT, DY, MEAN, RSTD, DX, PARTIALS, outer, middle, inner, x_outer, x_middle, x_row, dy_outer, dy_middle, dy_row,
    dx_outer, dx_middle, dx_row, stat_outer, stat_middle, stat_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, BARRIER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB: each tile of rows is walked twice in column tiles, first for its means, then for its gradients.

    Moves: read x and dy twice (the second time from L2), write dx; partial dweight and dbias stay in GM, or rather in L2, and are
    read and written once per tile of rows.
    """
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    EXACT: tl.constexpr = X.dtype.element_ty != tl.bfloat16
    dweight_base, dbias_base = _partials(PARTIALS, n_cols, NEED_DWEIGHT, NEED_DBIAS)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + lane[:, None] * x_row
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK) + lane[:, None] * dy_row
        if NEED_DX:
            dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK) + lane[:, None] * dx_row
        mean_base = row_address(MEAN, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        rstd_base = row_address(RSTD, block, row, middle, stat_outer, stat_middle, stat_row, ONE_BLOCK)
        mean = tl.load(mean_base + lane * stat_row, mask=exists, other=0.0)[:, None]
        rstd = tl.load(rstd_base + lane * stat_row, mask=exists, other=0.0)[:, None]
        if NEED_DX:
            slope = tl.zeros((ROWS,), tl.float32)
            level = tl.zeros((ROWS,), tl.float32)
            for start in range(0, n_cols, COLS):
                inside = (start + cols < n_cols)[None, :]
                mask = exists[:, None] & inside
                x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
                dy = tl.load(dy_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
                weight = _parameter(WEIGHT, (start + cols)[None, :], inside, HAS_WEIGHT, True)
                if HAS_WEIGHT:
                    dy = dy * weight
                level += tl.sum(dy, axis=1)
                # A bf16 mean is at most 2^8 * sqrt(n_cols) deviations: taken off the sum, it costs no more than a rounding of bf16.
                slope += tl.sum(dy * (x - mean if EXACT else x), axis=1)
            level = (level * (1.0 / n_cols))[:, None]
            slope = (slope * (1.0 / n_cols))[:, None]
            if not EXACT:
                slope = slope - mean * level
            level = level * rstd
            slope = slope * rstd * rstd * rstd
        if BARRIER:
            # CUDA: partial sums of the tile of rows before may have been stored by another thread.
            tl.debug_barrier()
        # Nothing has been stored before the first trip.
        stored = tl.minimum(trip, 1) * n_cols
        for start in range(0, n_cols, COLS):
            columns = start + cols
            inside = (columns < n_cols)[None, :]
            mask = exists[:, None] & inside
            x = tl.load(x_base + columns[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + columns[None, :], mask=mask, other=0.0).to(tl.float32)
            centred = x - mean
            scaled = dy * rstd
            # Both loads before the stores: the compiler orders a load behind every store to the same tensor before it.
            if NEED_DWEIGHT:
                dweight = tl.load(dweight_base + columns, mask=columns < stored, other=0.0)
            if NEED_DBIAS:
                dbias = tl.load(dbias_base + columns, mask=columns < stored, other=0.0)
                tl.store(dbias_base + columns, dbias + tl.sum(dy, axis=0), mask=columns < n_cols)
            if NEED_DWEIGHT:
                tl.store(dweight_base + columns, dweight + tl.sum(scaled * centred, axis=0), mask=columns < n_cols)
            if NEED_DX:
                weight = _parameter(WEIGHT, columns[None, :], inside, HAS_WEIGHT, True)
                if HAS_WEIGHT:
                    scaled = scaled * weight
                tl.store(dx_base + columns[None, :], (scaled - centred * slope - level).to(DX.dtype.element_ty), mask=mask)
