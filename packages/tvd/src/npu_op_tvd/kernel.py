"""Kernel of the total variation distance: element by element, with one fp32 partial sum per program where the loss is reduced."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.divergence_tiles import kept_columns, my_pieces, piece, piece_address
from npu_op_runtime.tiles import row_arguments


@triton.jit(do_not_specialize=["n_cols", "ignore_index", "labels_row", *row_arguments("p", "q", "dloss", "loss", "dp", "dq", "labels")])
def tvd_kernel(
    P, Q, DLOSS, LOSS, DP, DQ, LABELS, PARTIALS, SCALE, scale, ignore_index, outer, middle, inner, p_outer, p_middle, p_row,
    q_outer, q_middle, q_row, dloss_outer, dloss_middle, dloss_row, loss_outer, loss_middle, loss_row,
    dp_outer, dp_middle, dp_row, dq_outer, dq_middle, dq_row, labels_outer, labels_middle, labels_row, n_cols,
    BLOCK: tl.constexpr, FLAT: tl.constexpr, ONE_BLOCK: tl.constexpr, ALIGNED: tl.constexpr, HAS_LABELS: tl.constexpr,
    REDUCED: tl.constexpr, ELEMENTS: tl.constexpr, INCOMING: tl.constexpr, NEED_DP: tl.constexpr, NEED_DQ: tl.constexpr,
):  # fmt: skip
    """Moves: read p and q, write the gradients that are wanted, and one fp32 partial sum per program.

    REDUCED: partial sums; ELEMENTS: the loss of every element; INCOMING: gradients are multiplied by DLOSS, one number per element.
    `scale` is what a mean multiplies a loss by, on the device (SCALE) where rows are counted there.
    """
    first, last, n_cols = my_pieces(outer, middle, inner, n_cols, BLOCK, FLAT, ALIGNED)
    lane = tl.arange(0, BLOCK)
    if SCALE is not None:
        half = tl.load(SCALE) * 0.5
    else:
        half = scale * 0.5
    total = tl.zeros((BLOCK,), tl.float32)
    for tile in range(first, last):
        block, row, column, remaining = piece(tile, inner, n_cols, BLOCK, FLAT)
        kept = kept_columns(
            LABELS, block, row, remaining, ignore_index, middle, labels_outer, labels_middle, labels_row, HAS_LABELS, ONE_BLOCK
        )
        read = lane < kept
        written = lane < remaining
        p_at = piece_address(P, block, row, column, middle, p_outer, p_middle, p_row, FLAT, ONE_BLOCK)
        q_at = piece_address(Q, block, row, column, middle, q_outer, q_middle, q_row, FLAT, ONE_BLOCK)
        p = tl.load(p_at + lane, mask=read, other=0.0).to(tl.float32)
        q = tl.load(q_at + lane, mask=read, other=0.0).to(tl.float32)
        difference = p - q
        if REDUCED:
            total += tl.abs(difference)
        if ELEMENTS:
            loss_at = piece_address(LOSS, block, row, column, middle, loss_outer, loss_middle, loss_row, FLAT, ONE_BLOCK)
            tl.store(loss_at + lane, (tl.abs(difference) * half).to(LOSS.dtype.element_ty), mask=written)
        if NEED_DP or NEED_DQ:
            dp = tl.where(difference > 0.0, half, tl.where(difference < 0.0, -half, 0.0))
            if INCOMING:
                dloss_at = piece_address(DLOSS, block, row, column, middle, dloss_outer, dloss_middle, dloss_row, FLAT, ONE_BLOCK)
                dp *= tl.load(dloss_at + lane, mask=read, other=0.0).to(tl.float32)
            if NEED_DP:
                dp_at = piece_address(DP, block, row, column, middle, dp_outer, dp_middle, dp_row, FLAT, ONE_BLOCK)
                tl.store(dp_at + lane, dp.to(DP.dtype.element_ty), mask=written)
            if NEED_DQ:
                dq_at = piece_address(DQ, block, row, column, middle, dq_outer, dq_middle, dq_row, FLAT, ONE_BLOCK)
                tl.store(dq_at + lane, (-dp).to(DQ.dtype.element_ty), mask=written)
    if REDUCED:
        tl.store(PARTIALS + tl.program_id(0), tl.sum(total, axis=0) * half)
