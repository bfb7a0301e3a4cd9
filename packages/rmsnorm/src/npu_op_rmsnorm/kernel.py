"""Kernels of RMSNorm and the buffers that each keeps in UB.

Layout of every kernel: tiles of ROWS rows (or, with FOLD > 1, of one row in FOLD pieces), a contiguous chunk of rows per
program, tile bases as int64 scalars and offsets inside a tile as int32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_arguments, row_sum, row_tile


@triton.jit
def _round(x, dtype: tl.constexpr, CASTING: tl.constexpr):
    """CASTING "none" computes in the input dtype: round after every operation."""
    if CASTING == "none":
        return x.to(dtype).to(tl.float32)
    else:
        return x


@triton.jit
def _rstd(mean_square, eps, dtype: tl.constexpr, CASTING: tl.constexpr):
    variance = _round(_round(mean_square, dtype, CASTING) + eps, dtype, CASTING)
    return _round(1.0 / tl.sqrt(variance), dtype, CASTING)


@triton.jit
def _apply(x, rstd, weight, dtype: tl.constexpr, CASTING: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    y = x * rstd
    if HAS_WEIGHT:
        if CASTING != "gemma":
            y = y.to(dtype).to(tl.float32)
        y = y * weight
    return y


@triton.jit
def _load_weight(WEIGHT, offsets, mask, offset, dtype: tl.constexpr, CASTING: tl.constexpr, HAS_WEIGHT: tl.constexpr, MASKED: tl.constexpr):
    if HAS_WEIGHT:
        if MASKED:
            weight = tl.load(WEIGHT + offsets, mask=mask, other=0.0)
        else:
            weight = tl.load(WEIGHT + offsets)
        return _round(weight.to(tl.float32) + offset, dtype, CASTING)
    else:
        return 0.0


@triton.jit(do_not_specialize=row_arguments("x", "y", "rstd"))
def rms_norm_forward_kernel(
    X, WEIGHT, Y, RSTD, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row, rstd_outer, rstd_middle, rstd_row,
    eps, offset,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
    CASTING: tl.constexpr, HAS_WEIGHT: tl.constexpr, SAVE_RSTD: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x, write y (+ 4 bytes of rstd per row), weight once per program."""
    if DENSE:
        x_row = n_cols
        y_row = n_cols
        rstd_row = 1
    dtype: tl.constexpr = X.dtype.element_ty
    lane = tl.arange(0, ROWS * FOLD)
    cols = tl.arange(0, COLS)
    inside = cols < n_cols
    if FOLD > 1:
        piece = lane[:, None] * COLS + cols[None, :]
        weight = _load_weight(WEIGHT, piece, 0, offset, dtype, CASTING, HAS_WEIGHT, False)
    elif not ONE_TILE:
        weight = _load_weight(WEIGHT, cols[None, :], inside[None, :], offset, dtype, CASTING, HAS_WEIGHT, True)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK, ONE_TILE)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK)
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK)
        if SAVE_RSTD:
            rstd_base = row_address(RSTD, block, row, middle, rstd_outer, rstd_middle, rstd_row, ONE_BLOCK)
        if FOLD > 1:
            x = tl.load(x_base + piece).to(tl.float32)
        else:
            exists = lane < remaining
            mask = exists[:, None] & inside[None, :]
            x = tl.load(x_base + lane[:, None] * x_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        if ONE_TILE:
            # A program of one tile (CUDA): asked for after x, and on its way while x is reduced.
            weight = _load_weight(WEIGHT, cols[None, :], inside[None, :], offset, dtype, CASTING, HAS_WEIGHT, True)
        square = _round(x * x, dtype, CASTING)
        rstd = _rstd(row_sum(square, FOLD) * (1.0 / n_cols), eps, dtype, CASTING)
        y = _apply(x, rstd[:, None], weight, dtype, CASTING, HAS_WEIGHT).to(dtype)
        if FOLD > 1:
            tl.store(y_base + piece, y)
            if SAVE_RSTD:
                # Every piece holds the row's rstd; the first one stores it.
                tl.store(rstd_base + lane * rstd_row, rstd, mask=lane < 1)
        else:
            tl.store(y_base + lane[:, None] * y_row + cols[None, :], y, mask=mask)
            if SAVE_RSTD:
                tl.store(rstd_base + lane * rstd_row, rstd, mask=exists)


@triton.jit(do_not_specialize=row_arguments("x", "y", "rstd"))
def rms_norm_forward_wide_kernel(
    X, WEIGHT, Y, RSTD, outer, middle, inner, x_outer, x_middle, x_row, y_outer, y_middle, y_row, rstd_outer, rstd_middle, rstd_row,
    eps, offset,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
    CASTING: tl.constexpr, HAS_WEIGHT: tl.constexpr, SAVE_RSTD: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB, in column tiles. Moves: read x twice (the second time from L2), write y, weight once per tile of rows."""
    dtype: tl.constexpr = X.dtype.element_ty
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + lane[:, None] * x_row
        y_base = row_address(Y, block, row, middle, y_outer, y_middle, y_row, ONE_BLOCK) + lane[:, None] * y_row
        if SAVE_RSTD:
            rstd_base = row_address(RSTD, block, row, middle, rstd_outer, rstd_middle, rstd_row, ONE_BLOCK)
        # Squares are added across tiles as a tile and reduced once: one reduction per row instead of one per tile.
        squares = tl.zeros((ROWS, COLS), tl.float32)
        for start in range(0, n_cols, COLS):
            mask = exists[:, None] & (start + cols < n_cols)[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            squares += _round(x * x, dtype, CASTING)
        rstd = _rstd(tl.sum(squares, axis=1) * (1.0 / n_cols), eps, dtype, CASTING)
        if SAVE_RSTD:
            tl.store(rstd_base + lane * rstd_row, rstd, mask=exists)
        for start in range(0, n_cols, COLS):
            inside = start + cols < n_cols
            mask = exists[:, None] & inside[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            weight = _load_weight(WEIGHT, start + cols, inside, offset, dtype, CASTING, HAS_WEIGHT, True)
            if HAS_WEIGHT:
                weight = weight[None, :]
            y = _apply(x, rstd[:, None], weight, dtype, CASTING, HAS_WEIGHT)
            tl.store(y_base + (start + cols)[None, :], y.to(dtype), mask=mask)


@triton.jit(do_not_specialize=row_arguments("x", "dy", "dx", "rstd"))
def rms_norm_backward_kernel(
    X, WEIGHT, DY, RSTD, DX, DWEIGHT, outer, middle, inner, x_outer, x_middle, x_row, dy_outer, dy_middle, dy_row,
    dx_outer, dx_middle, dx_row, rstd_outer, rstd_middle, rstd_row, offset,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, DENSE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x and dy, write dx, one fp32 row of partial dweight per program.

    With s = dy * rstd: dweight = sum over rows of s * x, dx = s * weight - x * rstd^2 * mean(s * x * weight).
    """
    if DENSE:
        x_row = n_cols
        dy_row = n_cols
        dx_row = n_cols
        rstd_row = 1
    lane = tl.arange(0, ROWS * FOLD)
    cols = tl.arange(0, COLS)
    inside = cols < n_cols
    if FOLD > 1:
        piece = lane[:, None] * COLS + cols[None, :]
        weight = _load_weight(WEIGHT, piece, 0, offset, tl.float32, "llama", HAS_WEIGHT, False)
        dweight = tl.zeros((FOLD, COLS), tl.float32)
    else:
        weight = _load_weight(WEIGHT, cols, inside, offset, tl.float32, "llama", HAS_WEIGHT, True)
        if HAS_WEIGHT:
            weight = weight[None, :]
        dweight = tl.zeros((COLS,), tl.float32)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK)
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK)
        rstd_base = row_address(RSTD, block, row, middle, rstd_outer, rstd_middle, rstd_row, ONE_BLOCK)
        if FOLD > 1:
            rstd = tl.load(rstd_base)
            x = tl.load(x_base + piece).to(tl.float32)
            dy = tl.load(dy_base + piece).to(tl.float32)
        else:
            exists = lane < remaining
            mask = exists[:, None] & inside[None, :]
            rstd = tl.load(rstd_base + lane * rstd_row, mask=exists, other=0.0)[:, None]
            x = tl.load(x_base + lane[:, None] * x_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + lane[:, None] * dy_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        # The vector unit drains before it reads what it has just written: neighbours here do not need one another.
        scaled = dy * rstd
        unit = rstd * rstd * (1.0 / n_cols)
        product = scaled * x
        weighted = scaled * weight if HAS_WEIGHT else scaled
        if NEED_DWEIGHT:
            if FOLD > 1:
                dweight += product
            else:
                dweight += tl.sum(product, axis=0)
        if NEED_DX:
            dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK)
            slope = row_sum(weighted * x, FOLD)[:, None] * unit
            dx = (weighted - x * slope).to(DX.dtype.element_ty)
            if FOLD > 1:
                tl.store(dx_base + piece, dx)
            else:
                tl.store(dx_base + lane[:, None] * dx_row + cols[None, :], dx, mask=mask)
    if NEED_DWEIGHT:
        dweight_base = DWEIGHT + tl.program_id(0) * n_cols
        if FOLD > 1:
            tl.store(dweight_base + piece, dweight)
        else:
            tl.store(dweight_base + cols, dweight, mask=inside)


@triton.jit(do_not_specialize=row_arguments("x", "dy", "dx", "rstd"))
def rms_norm_backward_wide_kernel(
    X, WEIGHT, DY, RSTD, DX, DWEIGHT, outer, middle, inner, x_outer, x_middle, x_row, dy_outer, dy_middle, dy_row,
    dx_outer, dx_middle, dx_row, rstd_outer, rstd_middle, rstd_row, offset,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, BARRIER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB: each tile of rows is walked twice in column tiles, first for its means, then for its gradients.

    Moves: read x and dy twice (the second time from L2), write dx; partial dweight stays in GM, or rather in L2, and is read and
    written once per tile of rows.
    """
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    dweight_base = DWEIGHT + tl.program_id(0) * n_cols
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(X, block, row, middle, x_outer, x_middle, x_row, ONE_BLOCK) + lane[:, None] * x_row
        dy_base = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK) + lane[:, None] * dy_row
        if NEED_DX:
            dx_base = row_address(DX, block, row, middle, dx_outer, dx_middle, dx_row, ONE_BLOCK) + lane[:, None] * dx_row
        rstd_base = row_address(RSTD, block, row, middle, rstd_outer, rstd_middle, rstd_row, ONE_BLOCK)
        rstd = tl.load(rstd_base + lane * rstd_row, mask=exists, other=0.0)[:, None]
        if NEED_DX:
            products = tl.zeros((ROWS, COLS), tl.float32)
            for start in range(0, n_cols, COLS):
                inside = start + cols < n_cols
                mask = exists[:, None] & inside[None, :]
                x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
                dy = tl.load(dy_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
                weight = _load_weight(WEIGHT, start + cols, inside, offset, tl.float32, "llama", HAS_WEIGHT, True)
                if HAS_WEIGHT:
                    dy = dy * weight[None, :]
                products += x * dy
            slope = (tl.sum(products, axis=1) * (1.0 / n_cols))[:, None] * rstd * rstd * rstd
        if BARRIER:
            # CUDA: partial sums of the tile of rows before may have been stored by another thread.
            tl.debug_barrier()
        # Nothing has been stored before the first trip.
        stored = tl.minimum(trip, 1) * n_cols
        for start in range(0, n_cols, COLS):
            inside = start + cols < n_cols
            mask = exists[:, None] & inside[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            scaled = dy * rstd
            if NEED_DWEIGHT:
                dweight = tl.load(dweight_base + start + cols, mask=start + cols < stored, other=0.0)
                tl.store(dweight_base + start + cols, dweight + tl.sum(scaled * x, axis=0), mask=inside)
            if NEED_DX:
                weight = _load_weight(WEIGHT, start + cols, inside, offset, tl.float32, "llama", HAS_WEIGHT, True)
                if HAS_WEIGHT:
                    scaled = scaled * weight[None, :]
                tl.store(dx_base + (start + cols)[None, :], (scaled - x * slope).to(DX.dtype.element_ty), mask=mask)
