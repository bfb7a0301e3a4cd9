"""Kernel of the generalised Jensen-Shannon divergence: element by element, with one fp32 partial sum per program."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.divergence_tiles import kept_columns, my_pieces, piece, piece_address
from npu_op_runtime.tiles import row_arguments

# As in reference.py.
LOWEST = tl.constexpr(-200.0)
FARTHEST = tl.constexpr(80.0)


@triton.jit
def _exp(x, CUDA: tl.constexpr, EXACT: tl.constexpr = False):
    """exp(x). CUDA: one instruction after a multiplication, where tl.exp spends three more on results that are subnormal.

    The product's rounding is an error of up to 2^-24 * x of the result. EXACT (CUDA) puts it right: what a fused product leaves
    of it, and what the constant leaves of log2(e), times ln(2).
    """
    if CUDA:
        product = x * 1.4426950408889634
        power = tl.exp2(product)
        if EXACT:
            rest = tl.fma(x, 1.925963e-08, tl.fma(x, 1.4426950216293335, -product))
            power = tl.fma(power, rest * 0.6931471805599453, power)
        return power
    else:
        return tl.exp(x)


@triton.jit
def _log(x, CUDA: tl.constexpr):
    """log(x) of a normal number above 0, or NaN. CUDA: a third less instructions than tl.log, which is for any number."""
    if CUDA:
        # x = 2^e * (1 + f), f within a third: log(1 + f) = f + f^2 * (polynomial, least maximum of the relative error: 1e-7 as computed).
        bits = x.to(tl.int32, bitcast=True)
        exponent = (bits - 0x3F2AAAAB) & -0x800000
        f = (bits - exponent).to(tl.float32, bitcast=True) - 1.0
        polynomial = f * 0.14026246964931488 - 0.1538855880498886
        polynomial = polynomial * f + 0.13995829224586487
        polynomial = polynomial * f - 0.16415956616401672
        polynomial = polynomial * f + 0.20011167228221893
        polynomial = polynomial * f - 0.2500782012939453
        polynomial = polynomial * f + 0.33333197236061096
        polynomial = polynomial * f - 0.49999937415122986
        # x - x is 0, or NaN.
        return exponent.to(tl.float32) * (0.6931471805599453 / 0x800000) + (f * polynomial * f + f) + (x - x)
    else:
        return tl.log(x)


@triton.jit
def _mixed_terms(log_q, log_p, beta, rest, CUDA: tl.constexpr):
    """q * log(m / q) and p * log(p / m) with m = beta * p + rest * q.

    With t = log(m / q) = log(beta * p / q + rest) the second logarithm is log(p / q) - t: both exactly 0 for equal p and q.
    """
    # NaN goes through: one vector operation, where ignoring it takes seven.
    log_q = tl.maximum(log_q, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    log_p = tl.maximum(log_p, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    ratio = tl.minimum(log_p - log_q, FARTHEST, propagate_nan=tl.PropagateNan.ALL)
    t = _log(_exp(ratio, CUDA) * beta + rest, CUDA)
    return _exp(log_q, CUDA, True) * t, _exp(log_p, CUDA, True) * (ratio - t)


@triton.jit(do_not_specialize=["n_cols", "ignore_index", "labels_row", *row_arguments("q", "p", "dq", "dp", "labels")])
def jsd_kernel(
    LOG_Q, LOG_P, DQ, DP, LABELS, PARTIALS, SCALE, scale, beta, rest, ignore_index, outer, middle, inner, q_outer, q_middle, q_row,
    p_outer, p_middle, p_row, dq_outer, dq_middle, dq_row, dp_outer, dp_middle, dp_row, labels_outer, labels_middle, labels_row, n_cols,
    BLOCK: tl.constexpr, FLAT: tl.constexpr, ONE_BLOCK: tl.constexpr, ALIGNED: tl.constexpr, HAS_LABELS: tl.constexpr,
    MIXED: tl.constexpr, NEED_DQ: tl.constexpr, NEED_DP: tl.constexpr, CUDA: tl.constexpr,
):  # fmt: skip
    """Moves: read log_q and log_p, write the gradients that are wanted, and one fp32 partial sum per program.

    MIXED: 0 < beta < 1, rest is 1 - beta. Else KL(P || Q). `scale` is 1 over the number of rows, on the device (SCALE) where they are
    counted there.
    """
    first, last, n_cols = my_pieces(outer, middle, inner, n_cols, BLOCK, FLAT, ALIGNED)
    lane = tl.arange(0, BLOCK)
    if HAS_LABELS:
        scale = tl.load(SCALE)
    # The sums of both terms, each without its factor: fewer operations per element than the sum of the two.
    total_q = tl.zeros((BLOCK,), tl.float32)
    total_p = tl.zeros((BLOCK,), tl.float32)
    for tile in range(first, last):
        block, row, column, remaining = piece(tile, inner, n_cols, BLOCK, FLAT)
        kept = kept_columns(
            LABELS, block, row, remaining, ignore_index, middle, labels_outer, labels_middle, labels_row, HAS_LABELS, ONE_BLOCK
        )
        read = lane < kept
        written = lane < remaining
        q_at = piece_address(LOG_Q, block, row, column, middle, q_outer, q_middle, q_row, FLAT, ONE_BLOCK)
        p_at = piece_address(LOG_P, block, row, column, middle, p_outer, p_middle, p_row, FLAT, ONE_BLOCK)
        log_q = tl.load(q_at + lane, mask=read, other=LOWEST).to(tl.float32)
        log_p = tl.load(p_at + lane, mask=read, other=LOWEST).to(tl.float32)
        if MIXED:
            q_term, p_term = _mixed_terms(log_q, log_p, beta, rest, CUDA)
            total_q += q_term
            total_p += p_term
            dq = q_term * (-rest * scale)
            dp = p_term * (beta * scale)
        else:
            p = tl.exp(log_p)
            p_term = tl.where(p == 0.0, 0.0, p * (log_p - log_q))
            total_p += p_term
            dq = p * -scale
            dp = (p_term + p) * scale
        if NEED_DQ:
            dq_at = piece_address(DQ, block, row, column, middle, dq_outer, dq_middle, dq_row, FLAT, ONE_BLOCK)
            tl.store(dq_at + lane, dq.to(DQ.dtype.element_ty), mask=written)
        if NEED_DP:
            dp_at = piece_address(DP, block, row, column, middle, dp_outer, dp_middle, dp_row, FLAT, ONE_BLOCK)
            tl.store(dp_at + lane, dp.to(DP.dtype.element_ty), mask=written)
    loss = tl.sum(total_p, axis=0)
    if MIXED:
        loss = loss * beta - tl.sum(total_q, axis=0) * rest
    tl.store(PARTIALS + tl.program_id(0), loss * scale)
