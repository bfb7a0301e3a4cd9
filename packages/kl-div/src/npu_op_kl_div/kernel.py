"""Kernels of the KL divergence: element by element, with one fp32 partial sum per program where the loss is reduced."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.divergence_tiles import my_pieces, piece, piece_address
from npu_op_runtime.tiles import row_arguments

# Smallest normal fp32: added to a target it changes none that the loss could show, and 0 * log of it is 0 without a comparison.
TINY = tl.constexpr(1.1754943508222875e-38)

# What a masked log-probability reads as: its exp is 0, and so is the product of the two.
IMPOSSIBLE = tl.constexpr(-10000.0)


@triton.jit(do_not_specialize=["n_cols", "labels_row", *row_arguments("input", "target", "loss", "labels")])
def kl_div_forward_kernel(
    INPUT, TARGET, LOSS, LABELS, PARTIALS, scale, outer, middle, inner, input_outer, input_middle, input_row,
    target_outer, target_middle, target_row, loss_outer, loss_middle, loss_row, labels_outer, labels_middle, labels_row, n_cols,
    BLOCK: tl.constexpr, FLAT: tl.constexpr, ONE_BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    LOG_TARGET: tl.constexpr, REDUCED: tl.constexpr,
):  # fmt: skip
    """Moves: read input and target, write one fp32 partial sum per program, or the loss of every element."""
    first, last, n_cols = my_pieces(outer, middle, inner, n_cols, BLOCK, FLAT, ALIGNED)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for tile in range(first, last):
        block, row, column, remaining = piece(tile, inner, n_cols, BLOCK, FLAT)
        mask = lane < remaining
        input_at = piece_address(INPUT, block, row, column, middle, input_outer, input_middle, input_row, FLAT, ONE_BLOCK)
        target_at = piece_address(TARGET, block, row, column, middle, target_outer, target_middle, target_row, FLAT, ONE_BLOCK)
        x = tl.load(input_at + lane, mask=mask, other=0.0).to(tl.float32)
        if LOG_TARGET:
            t = tl.load(target_at + lane, mask=mask, other=IMPOSSIBLE).to(tl.float32)
            loss = tl.exp(t) * (t - x)
        else:
            t = tl.load(target_at + lane, mask=mask, other=0.0).to(tl.float32)
            loss = t * (tl.log(t + TINY) - x)
        if REDUCED:
            total += loss
        else:
            loss_at = piece_address(LOSS, block, row, column, middle, loss_outer, loss_middle, loss_row, FLAT, ONE_BLOCK)
            tl.store(loss_at + lane, loss.to(LOSS.dtype.element_ty), mask=mask)
    if REDUCED:
        tl.store(PARTIALS + tl.program_id(0), tl.sum(total, axis=0) * scale)


@triton.jit(do_not_specialize=["n_cols", "labels_row", *row_arguments("dloss", "input", "target", "dinput", "dtarget", "labels")])
def kl_div_backward_kernel(
    DLOSS, INPUT, TARGET, DINPUT, DTARGET, LABELS, PARTIALS, DTOTAL, scale, outer, middle, inner, dloss_outer, dloss_middle, dloss_row,
    input_outer, input_middle, input_row, target_outer, target_middle, target_row, dinput_outer, dinput_middle, dinput_row,
    dtarget_outer, dtarget_middle, dtarget_row, labels_outer, labels_middle, labels_row, n_cols,
    BLOCK: tl.constexpr, FLAT: tl.constexpr, ONE_BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    LOG_TARGET: tl.constexpr, REDUCED: tl.constexpr, NEED_DINPUT: tl.constexpr, NEED_DTARGET: tl.constexpr,
):  # fmt: skip
    """Moves: read target, and input where the gradient of target is wanted, write the gradients.

    The incoming gradient is one number, DTOTAL, or one per element, DLOSS.
    """
    first, last, n_cols = my_pieces(outer, middle, inner, n_cols, BLOCK, FLAT, ALIGNED)
    lane = tl.arange(0, BLOCK)
    if REDUCED:
        dloss = tl.load(DTOTAL).to(tl.float32) * scale
    for tile in range(first, last):
        block, row, column, remaining = piece(tile, inner, n_cols, BLOCK, FLAT)
        mask = lane < remaining
        if not REDUCED:
            dloss_at = piece_address(DLOSS, block, row, column, middle, dloss_outer, dloss_middle, dloss_row, FLAT, ONE_BLOCK)
            dloss = tl.load(dloss_at + lane, mask=mask, other=0.0).to(tl.float32)
        target_at = piece_address(TARGET, block, row, column, middle, target_outer, target_middle, target_row, FLAT, ONE_BLOCK)
        t = tl.load(target_at + lane, mask=mask, other=0.0).to(tl.float32)
        probability = tl.exp(t) if LOG_TARGET else t
        if NEED_DINPUT:
            dinput_at = piece_address(DINPUT, block, row, column, middle, dinput_outer, dinput_middle, dinput_row, FLAT, ONE_BLOCK)
            tl.store(dinput_at + lane, (probability * -dloss).to(DINPUT.dtype.element_ty), mask=mask)
        if NEED_DTARGET:
            input_at = piece_address(INPUT, block, row, column, middle, input_outer, input_middle, input_row, FLAT, ONE_BLOCK)
            x = tl.load(input_at + lane, mask=mask, other=0.0).to(tl.float32)
            if LOG_TARGET:
                dtarget = probability * (t - x + 1.0) * dloss
            else:
                dtarget = tl.where(t == 0.0, 0.0, (tl.log(t + TINY) - x + 1.0) * dloss)
            dtarget_at = piece_address(DTARGET, block, row, column, middle, dtarget_outer, dtarget_middle, dtarget_row, FLAT, ONE_BLOCK)
            tl.store(dtarget_at + lane, dtarget.to(DTARGET.dtype.element_ty), mask=mask)
