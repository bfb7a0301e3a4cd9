"""Kernels of split and RMSNorm: rows of q | kv | rope columns in, three tensors out."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_tile


@triton.jit
def _parameter(PARAMETER, cols, n_cols: tl.constexpr, GIVEN: tl.constexpr):
    if GIVEN:
        return tl.load(PARAMETER + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    else:
        return 0.0


@triton.jit
def _rstd(squares, eps, n_cols: tl.constexpr):
    # Divided, not multiplied by 1 / n_cols: that is what a mean is, to the last bit.
    return 1.0 / tl.sqrt(tl.sum(squares, axis=1) / n_cols + eps)[:, None]


@triton.jit
def _scale(x, rstd, weight, bias, dtype: tl.constexpr, HAS_BIAS: tl.constexpr):
    """In the order of transformers: rounded to dtype, then times the weight."""
    y = (x * rstd).to(dtype).to(tl.float32) * weight
    if HAS_BIAS:
        y = y + bias
    return y.to(dtype)


@triton.jit
def _norm(
    X, OUT, x_row, lane, exists, eps, weight, bias, WEIGHT, BIAS,
    n_cols: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr, PARAMETERS_RESIDENT: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, COLS)[None, :]
    mask = exists & (cols < n_cols)
    x = tl.load(X + (lane * x_row + cols), mask=mask, other=0.0).to(tl.float32)
    rstd = _rstd(x * x, eps, n_cols)
    if not PARAMETERS_RESIDENT:
        # A program of one tile (CUDA) would wait for the parameters before it asks for x.
        weight = _parameter(WEIGHT, cols, n_cols, True)
        bias = _parameter(BIAS, cols, n_cols, HAS_BIAS)
    tl.store(OUT + (lane * n_cols + cols), _scale(x, rstd, weight, bias, OUT.dtype.element_ty, HAS_BIAS), mask=mask)


@triton.jit
def _copy(X, OUT, x_row, lane, exists, n_cols: tl.constexpr, COLS: tl.constexpr):
    cols = tl.arange(0, COLS)[None, :]
    mask = exists & (cols < n_cols)
    tl.store(OUT + (lane * n_cols + cols), tl.load(X + (lane * x_row + cols), mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def split_qk_norm_kernel(
    X, Q_WEIGHT, KV_WEIGHT, Q_BIAS, KV_BIAS, Q_OUT, KV_OUT, PE_OUT, rows, x_row, q_eps, kv_eps,
    Q: tl.constexpr, KV: tl.constexpr, PE: tl.constexpr, Q_COLS: tl.constexpr, KV_COLS: tl.constexpr, PE_COLS: tl.constexpr,
    ROWS: tl.constexpr, HAS_Q_BIAS: tl.constexpr, HAS_KV_BIAS: tl.constexpr, PARAMETERS_RESIDENT: tl.constexpr,
):  # fmt: skip
    """Whole rows resident. Moves: read x, write the three outputs, the parameters once per program."""
    lane = tl.arange(0, ROWS)[:, None]
    q_cols = tl.arange(0, Q_COLS)[None, :]
    kv_cols = tl.arange(0, KV_COLS)[None, :]
    q_weight = _parameter(Q_WEIGHT, q_cols, Q, PARAMETERS_RESIDENT)
    q_bias = _parameter(Q_BIAS, q_cols, Q, PARAMETERS_RESIDENT and HAS_Q_BIAS)
    kv_weight = _parameter(KV_WEIGHT, kv_cols, KV, PARAMETERS_RESIDENT)
    kv_bias = _parameter(KV_BIAS, kv_cols, KV, PARAMETERS_RESIDENT and HAS_KV_BIAS)
    first, last, trips = my_rows(1, rows, ROWS, True)
    for trip in range(trips):
        _, row, remaining = row_tile(trip, first, last, rows, ROWS, True)
        exists = lane < remaining
        x = row_address(X, 0, row, 1, 0, 0, x_row, True)
        q_out = row_address(Q_OUT, 0, row, 1, 0, 0, Q, True)
        kv_out = row_address(KV_OUT, 0, row, 1, 0, 0, KV, True)
        _norm(x, q_out, x_row, lane, exists, q_eps, q_weight, q_bias, Q_WEIGHT, Q_BIAS, Q, Q_COLS, HAS_Q_BIAS, PARAMETERS_RESIDENT)
        _norm(
            x + Q, kv_out, x_row, lane, exists, kv_eps, kv_weight, kv_bias, KV_WEIGHT, KV_BIAS,
            KV, KV_COLS, HAS_KV_BIAS, PARAMETERS_RESIDENT,
        )  # fmt: skip
        if PE > 0:
            _copy(x + (Q + KV), row_address(PE_OUT, 0, row, 1, 0, 0, PE, True), x_row, lane, exists, PE, PE_COLS)


@triton.jit
def _norm_wide(
    X, OUT, x_row, lane, exists, eps, WEIGHT, BIAS, n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr
):
    # Squares are added across tiles as a tile and reduced once: one reduction per row instead of one per tile.
    squares = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, n_cols, COLS):
        cols = (start + tl.arange(0, COLS))[None, :]
        x = tl.load(X + (lane * x_row + cols), mask=exists & (cols < n_cols), other=0.0).to(tl.float32)
        squares += x * x
    rstd = _rstd(squares, eps, n_cols)
    for start in range(0, n_cols, COLS):
        cols = (start + tl.arange(0, COLS))[None, :]
        mask = exists & (cols < n_cols)
        x = tl.load(X + (lane * x_row + cols), mask=mask, other=0.0).to(tl.float32)
        weight = _parameter(WEIGHT, cols, n_cols, True)
        bias = _parameter(BIAS, cols, n_cols, HAS_BIAS)
        tl.store(OUT + (lane * n_cols + cols), _scale(x, rstd, weight, bias, OUT.dtype.element_ty, HAS_BIAS), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def split_qk_norm_wide_kernel(
    X, Q_WEIGHT, KV_WEIGHT, Q_BIAS, KV_BIAS, Q_OUT, KV_OUT, PE_OUT, rows, x_row, q_eps, kv_eps,
    Q: tl.constexpr, KV: tl.constexpr, PE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HAS_Q_BIAS: tl.constexpr, HAS_KV_BIAS: tl.constexpr,
):  # fmt: skip
    """Rows wider than UB, in column tiles. Moves: read x twice (once from L2), write the outputs, parameters once per tile of rows."""
    lane = tl.arange(0, ROWS)[:, None]
    first, last, trips = my_rows(1, rows, ROWS, True)
    for trip in range(trips):
        _, row, remaining = row_tile(trip, first, last, rows, ROWS, True)
        exists = lane < remaining
        x = row_address(X, 0, row, 1, 0, 0, x_row, True)
        q_out = row_address(Q_OUT, 0, row, 1, 0, 0, Q, True)
        kv_out = row_address(KV_OUT, 0, row, 1, 0, 0, KV, True)
        pe_out = row_address(PE_OUT, 0, row, 1, 0, 0, PE, True)
        _norm_wide(x, q_out, x_row, lane, exists, q_eps, Q_WEIGHT, Q_BIAS, Q, ROWS, COLS, HAS_Q_BIAS)
        _norm_wide(x + Q, kv_out, x_row, lane, exists, kv_eps, KV_WEIGHT, KV_BIAS, KV, ROWS, COLS, HAS_KV_BIAS)
        for start in range(0, PE, COLS):
            cols = (start + tl.arange(0, COLS))[None, :]
            mask = exists & (cols < PE)
            tl.store(pe_out + (lane * PE + cols), tl.load(x + (Q + KV) + (lane * x_row + cols), mask=mask, other=0.0), mask=mask)
