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
def _rstds(q, kv, q_eps, kv_eps, Q: tl.constexpr, KV: tl.constexpr):
    """`_rstd` of two tiles, step by step side by side: the NPU's vector unit drains between steps of which one needs the other."""
    q_squares = q * q
    kv_squares = kv * kv
    q_sum = tl.sum(q_squares, axis=1)
    kv_sum = tl.sum(kv_squares, axis=1)
    q_mean = q_sum / Q
    kv_mean = kv_sum / KV
    q_mean += q_eps
    kv_mean += kv_eps
    q_root = tl.sqrt(q_mean)
    kv_root = tl.sqrt(kv_mean)
    q_rstd = 1.0 / q_root
    kv_rstd = 1.0 / kv_root
    return q_rstd[:, None], kv_rstd[:, None]


@triton.jit
def _weighted(
    y, weight, bias, WEIGHT, BIAS, cols,
    n_cols: tl.constexpr, dtype: tl.constexpr, HAS_BIAS: tl.constexpr, PARAMETERS_RESIDENT: tl.constexpr,
):  # fmt: skip
    """Rounded once; transformers rounds before the weight too, and each of the casts costs as much as a product."""
    if not PARAMETERS_RESIDENT:
        weight = _parameter(WEIGHT, cols, n_cols, True)
        bias = _parameter(BIAS, cols, n_cols, HAS_BIAS)
    y = y * weight
    if HAS_BIAS:
        y = y + bias
    return y.to(dtype)


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
        q_mask = exists & (q_cols < Q)
        kv_mask = exists & (kv_cols < KV)
        q = tl.load(x + (lane * x_row + q_cols), mask=q_mask, other=0.0).to(tl.float32)
        kv = tl.load(x + Q + (lane * x_row + kv_cols), mask=kv_mask, other=0.0).to(tl.float32)
        q_rstd, kv_rstd = _rstds(q, kv, q_eps, kv_eps, Q, KV)
        q = q * q_rstd
        kv = kv * kv_rstd
        # A program of one tile (CUDA) loads the parameters here: before x it would wait for them.
        dtype: tl.constexpr = X.dtype.element_ty
        q = _weighted(q, q_weight, q_bias, Q_WEIGHT, Q_BIAS, q_cols, Q, dtype, HAS_Q_BIAS, PARAMETERS_RESIDENT)
        kv = _weighted(kv, kv_weight, kv_bias, KV_WEIGHT, KV_BIAS, kv_cols, KV, dtype, HAS_KV_BIAS, PARAMETERS_RESIDENT)
        tl.store(q_out + (lane * Q + q_cols), q, mask=q_mask)
        tl.store(kv_out + (lane * KV + kv_cols), kv, mask=kv_mask)
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
        y = _weighted(x * rstd, 0.0, 0.0, WEIGHT, BIAS, cols, n_cols, OUT.dtype.element_ty, HAS_BIAS, False)
        tl.store(OUT + (lane * n_cols + cols), y, mask=mask)


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
