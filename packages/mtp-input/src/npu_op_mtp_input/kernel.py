"""Kernels of the input of multi-token prediction: the rows of two tensors normalised into the halves of one."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_chunk, row_address, row_sum


@triton.jit
def _rstd(squares, eps, n_cols: tl.constexpr, FOLD: tl.constexpr):
    # 1 / sqrt(sum / n + eps) with a step less: between steps of few values the NPU's vector unit only waits.
    root_n: tl.constexpr = n_cols**0.5
    return root_n / tl.sqrt(row_sum(squares, FOLD) + n_cols * eps)[:, None]


@triton.jit
def _weight(WEIGHT, at, mask, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(WEIGHT + at, mask=mask, other=0.0).to(tl.float32)
    else:
        return tl.load(WEIGHT + at).to(tl.float32)


@triton.jit
def _norm_rows(
    X, WEIGHT, OUT, x_row, eps, first, last,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, WEIGHT_RESIDENT: tl.constexpr,
):  # fmt: skip
    """Rows `first` to `last` of X into half rows of OUT, which lie 2 n_cols apart."""
    lane = tl.arange(0, ROWS * FOLD)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    inside = cols < n_cols
    piece = lane * COLS + cols
    if FOLD > 1:
        weight = _weight(WEIGHT, piece, inside, False)
    elif WEIGHT_RESIDENT:
        weight = _weight(WEIGHT, cols, inside, True)
    for trip in range(tl.cdiv(last - first, ROWS)):
        row = first + trip * ROWS
        x_base = row_address(X, 0, row, 1, 0, 0, x_row, True)
        out_base = row_address(OUT, 0, row, 1, 0, 0, 2 * n_cols, True)
        if FOLD > 1:
            x = tl.load(x_base + piece).to(tl.float32)
            tl.store(out_base + piece, (x * _rstd(x * x, eps, n_cols, FOLD) * weight).to(OUT.dtype.element_ty))
        else:
            mask = (lane < last - row) & inside
            x = tl.load(x_base + (lane * x_row + cols), mask=mask, other=0.0).to(tl.float32)
            rstd = _rstd(x * x, eps, n_cols, FOLD)
            if not WEIGHT_RESIDENT:
                # A program of one tile (CUDA) would wait for the weight before it asks for x.
                weight = _weight(WEIGHT, cols, inside, True)
            tl.store(out_base + (lane * (2 * n_cols) + cols), (x * rstd * weight).to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def mtp_input_kernel(
    EMBEDDING, HIDDEN, E_WEIGHT, H_WEIGHT, OUT, rows, e_row, h_row, e_eps, h_eps,
    n_cols: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr, COLS: tl.constexpr, WEIGHT_RESIDENT: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read both inputs, write the output, a weight once per program.

    The rows of both inputs are shared out as one list, so that a few tokens still keep twice as many cores busy.
    """
    first, last = my_chunk(2 * rows)
    _norm_rows(
        EMBEDDING, E_WEIGHT, OUT, e_row, e_eps, tl.minimum(first, rows), tl.minimum(last, rows), n_cols, ROWS, FOLD, COLS, WEIGHT_RESIDENT
    )
    _norm_rows(
        HIDDEN, H_WEIGHT, OUT + n_cols, h_row, h_eps, tl.maximum(first, rows) - rows, tl.maximum(last, rows) - rows,
        n_cols, ROWS, FOLD, COLS, WEIGHT_RESIDENT,
    )  # fmt: skip


@triton.jit
def _norm_rows_wide(X, WEIGHT, OUT, x_row, eps, first, last, n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    lane = tl.arange(0, ROWS)[:, None]
    for trip in range(tl.cdiv(last - first, ROWS)):
        row = first + trip * ROWS
        exists = lane < last - row
        x_base = row_address(X, 0, row, 1, 0, 0, x_row, True)
        out_base = row_address(OUT, 0, row, 1, 0, 0, 2 * n_cols, True)
        # Squares are added across tiles as a tile and reduced once: one reduction per row instead of one per tile.
        squares = tl.zeros((ROWS, COLS), tl.float32)
        for start in range(0, n_cols, COLS):
            cols = (start + tl.arange(0, COLS))[None, :]
            x = tl.load(x_base + (lane * x_row + cols), mask=exists & (cols < n_cols), other=0.0).to(tl.float32)
            squares += x * x
        rstd = _rstd(squares, eps, n_cols, 1)
        for start in range(0, n_cols, COLS):
            cols = (start + tl.arange(0, COLS))[None, :]
            mask = exists & (cols < n_cols)
            x = tl.load(x_base + (lane * x_row + cols), mask=mask, other=0.0).to(tl.float32)
            y = (x * rstd * _weight(WEIGHT, cols, cols < n_cols, True)).to(OUT.dtype.element_ty)
            tl.store(out_base + (lane * (2 * n_cols) + cols), y, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def mtp_input_wide_kernel(
    EMBEDDING, HIDDEN, E_WEIGHT, H_WEIGHT, OUT, rows, e_row, h_row, e_eps, h_eps,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB, in column tiles. Moves: read both inputs twice (once from L2), write the output, weights once per row tile."""
    first, last = my_chunk(2 * rows)
    _norm_rows_wide(EMBEDDING, E_WEIGHT, OUT, e_row, e_eps, tl.minimum(first, rows), tl.minimum(last, rows), n_cols, ROWS, COLS)
    _norm_rows_wide(
        HIDDEN, H_WEIGHT, OUT + n_cols, h_row, h_eps, tl.maximum(first, rows) - rows, tl.maximum(last, rows) - rows, n_cols, ROWS, COLS
    )
