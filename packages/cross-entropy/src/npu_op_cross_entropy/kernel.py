"""Kernels of cross-entropy over rows of logits.

A program walks its share of the rows, ROWS at a time, in column tiles of ROWS x COLS. What is summed over a row is summed lane by lane
across its tiles and reduced once. exp(x - shift) takes for `shift` the highest of the row's first HEAD logits, not of all of them, so
that one read is enough; a row whose sum then leaves the range of fp32 is done again from its true maximum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_arguments, row_tile

# Below every finite fp32: a start for maxima that, unlike -inf, can be subtracted from -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)

# A sum of exponentials above it may have lost terms to infinity; below it, its inverse times a gradient is a normal fp32 number.
HIGHEST_SUM = tl.constexpr(1e30)

# Above every column: fp32 counts exactly to 2^24.
NO_COLUMN = tl.constexpr(16777216.0)


@triton.jit
def capped(x, softcap, CAPPED: tl.constexpr):
    """softcap * tanh(x / softcap), by one exp: tanh(u) = 1 - 2 / (1 + exp(2u))."""
    if CAPPED:
        return (-2.0 / (tl.exp(x * (2.0 / softcap)) + 1.0) + 1.0) * softcap
    else:
        return x


@triton.jit
def _one_where(condition):
    return tl.where(condition, 1.0, 0.0)


@triton.jit
def _head(x_base, exists, softcap, n_cols: tl.constexpr, HEAD: tl.constexpr, CAPPED: tl.constexpr):
    """Highest of the first HEAD logits of each row."""
    cols = tl.arange(0, HEAD)
    mask = exists[:, None] & (cols < n_cols)[None, :]
    x = tl.load(x_base + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    return tl.maximum(capped(tl.max(x, axis=1), softcap, CAPPED), LOWEST)


@triton.jit
def _highest(x_base, exists, softcap, n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAPPED: tl.constexpr):
    """Highest logit of each row."""
    cols = tl.arange(0, COLS)
    highest = tl.zeros((ROWS,), tl.float32) + LOWEST
    for start in range(0, n_cols, COLS):
        mask = exists[:, None] & (start + cols < n_cols)[None, :]
        x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=float("-inf")).to(tl.float32)
        # tl.maximum here fails an assertion of Triton 3.6 on CUDA (TritonGPUOptimizeThreadLocality); NaN loses either way.
        here = tl.max(x, axis=1)
        highest = tl.where(here > highest, here, highest)
    return capped(highest, softcap, CAPPED)


@triton.jit
def _rows(
    trip, first, last, LOGITS, TARGET, WEIGHT, weight_sum, LOSS, LABEL, SHIFT, TOTAL, CLASS_WEIGHT, Z_LOSS, CORRECT, PREDICTED,
    middle, inner, logits_outer, logits_middle, logits_row, target_outer, target_middle, target_row, out_outer, out_middle, out_row,
    ignore_index, label_smoothing, lse_square_scale, softcap, TRUE_MAXIMUM: tl.constexpr,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, HEAD: tl.constexpr, ONE_BLOCK: tl.constexpr, NONE: tl.constexpr,
    SAVE: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr, CAPPED: tl.constexpr, Z: tl.constexpr, ACCURACY: tl.constexpr,
    PREDICTION: tl.constexpr, DEBUG: tl.constexpr,
):  # fmt: skip
    """Everything of a trip's rows; returns 1 for each whose sum left the range of fp32, else 0."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
    exists = lane < remaining
    x_at = row_address(LOGITS, block, row, middle, logits_outer, logits_middle, logits_row, ONE_BLOCK)
    x_base = x_at + lane[:, None] * logits_row
    t_at = row_address(TARGET, block, row, middle, target_outer, target_middle, target_row, ONE_BLOCK)
    out = row_address(0, block, row, middle, out_outer, out_middle, out_row, ONE_BLOCK) + lane * out_row
    if TRUE_MAXIMUM:
        shift = _highest(x_base, exists, softcap, n_cols, ROWS, COLS, CAPPED)
    else:
        shift = _head(x_base, exists, softcap, n_cols, HEAD, CAPPED)

    label = tl.zeros((ROWS,), tl.float32)
    # Cast as a vector: the cast of a 16-bit scalar makes the scalar unit wait for the vector unit.
    target_logit = tl.zeros((ROWS,), x_at.dtype.element_ty)
    if WEIGHTED:
        class_weight = tl.zeros((ROWS,), WEIGHT.dtype.element_ty)
    for i in tl.static_range(ROWS):
        at = tl.minimum(i, remaining - 1)
        t = tl.load(t_at + at * target_row)
        kept = t != ignore_index
        valid = (t >= 0) & (t < n_cols)
        if DEBUG:
            tl.device_assert(valid | (t == ignore_index), "target must lie in [0, V) or be ignore_index")
        # Never an address outside of the row, whatever the target; a row with an invalid one is NaN.
        column = tl.where(valid, t, 0).to(tl.int32)
        mine = lane == i
        label = tl.where(mine, tl.where(kept, tl.where(valid, column.to(tl.float32), float("nan")), -1.0), label)
        target_logit = tl.where(mine, tl.load(x_at + at * logits_row + column), target_logit)
        if WEIGHTED:
            class_weight = tl.where(mine, tl.load(WEIGHT + column), class_weight)

    sums = tl.zeros((ROWS, COLS), tl.float32)
    if SMOOTHED:
        smooth = tl.zeros((ROWS, COLS), tl.float32)
    if ACCURACY or PREDICTION:
        best = tl.zeros((ROWS, COLS), tl.float32) - float("inf")
        best_start = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, n_cols, COLS):
        inside = start + cols < n_cols
        mask = exists[:, None] & inside[None, :]
        x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=float("-inf")).to(tl.float32)
        d = capped(x, softcap, CAPPED) - shift[:, None]
        if CAPPED and n_cols % COLS != 0:
            d = tl.where(inside[None, :], d, float("-inf"))
        sums += tl.exp(d)
        if SMOOTHED:
            if n_cols % COLS != 0:
                d = tl.where(inside[None, :], d, 0.0)
            if WEIGHTED:
                d *= tl.load(WEIGHT + start + cols, mask=inside, other=0.0).to(tl.float32)[None, :]
            smooth += d
        if ACCURACY or PREDICTION:
            better = x > best
            best = tl.where(better, x, best)
            best_start = tl.where(better, start, best_start)

    total = tl.sum(sums, axis=1)
    log_total = tl.log(total)
    ignored = label < 0.0
    loss = log_total - (capped(target_logit.to(tl.float32), softcap, CAPPED) - shift)
    if WEIGHTED:
        class_weight = class_weight.to(tl.float32)
        loss *= class_weight
    if SMOOTHED:
        loss = loss * (1.0 - label_smoothing) + (log_total * weight_sum - tl.sum(smooth, axis=1)) * (label_smoothing / n_cols)
    loss = tl.where(ignored, 0.0, tl.where(label == label, loss, label))
    if Z:
        lse = shift + log_total
        z_loss = tl.where(ignored, 0.0, lse * lse * lse_square_scale)
        tl.store(Z_LOSS + out, z_loss, mask=exists)
        if NONE:
            loss += z_loss
    tl.store(LOSS + out, loss, mask=exists)
    tl.store(LABEL + out, label, mask=exists)
    if SAVE:
        tl.store(SHIFT + out, shift, mask=exists)
        tl.store(TOTAL + out, total, mask=exists)
    if WEIGHTED:
        tl.store(CLASS_WEIGHT + out, class_weight, mask=exists)
    if ACCURACY or PREDICTION:
        column = best_start + cols.to(tl.float32)[None, :]
        predicted = tl.min(tl.where(best == tl.max(best, axis=1)[:, None], column, NO_COLUMN), axis=1)
        if ACCURACY:
            tl.store(CORRECT + out, _one_where(predicted == label), mask=exists)
        if PREDICTION:
            tl.store(PREDICTED + out, tl.where(ignored, -1.0, predicted).to(tl.int32), mask=exists)
    return _one_where(exists) - _one_where(exists & (total > 0.0) & (total < HIGHEST_SUM))


@triton.jit(do_not_specialize=[*row_arguments("logits", "target", "out"), "target_row", "out_row", "ignore_index"])
def cross_entropy_forward_kernel(
    LOGITS, TARGET, WEIGHT, WEIGHT_SUM, LOSS, LABEL, SHIFT, TOTAL, CLASS_WEIGHT, Z_LOSS, CORRECT, PREDICTED, outer, middle, inner,
    logits_outer, logits_middle, logits_row, target_outer, target_middle, target_row, out_outer, out_middle, out_row,
    ignore_index, label_smoothing, lse_square_scale, softcap,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, HEAD: tl.constexpr, ONE_BLOCK: tl.constexpr, NONE: tl.constexpr,
    SAVE: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr, CAPPED: tl.constexpr, Z: tl.constexpr, ACCURACY: tl.constexpr,
    PREDICTION: tl.constexpr, DEBUG: tl.constexpr,
):  # fmt: skip
    """The losses of the rows, and what their gradient needs. Moves: read the logits once; a few values per row in and out.

    LABEL is the target as fp32, -1 where ignored, NaN where out of range. SHIFT and TOTAL give log(sum(exp(z))) = shift + log(total).
    """
    weight_sum = n_cols * 1.0
    if SMOOTHED and WEIGHTED:
        weight_sum = tl.load(WEIGHT_SUM)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    out_of_range = tl.zeros((ROWS,), tl.float32)
    for trip in range(trips):
        out_of_range += _rows(
            trip, first, last, LOGITS, TARGET, WEIGHT, weight_sum, LOSS, LABEL, SHIFT, TOTAL, CLASS_WEIGHT, Z_LOSS, CORRECT, PREDICTED,
            middle, inner, logits_outer, logits_middle, logits_row, target_outer, target_middle, target_row, out_outer, out_middle, out_row,
            ignore_index, label_smoothing, lse_square_scale, softcap, False,
            n_cols, ROWS, COLS, HEAD, ONE_BLOCK, NONE, SAVE, WEIGHTED, SMOOTHED, CAPPED, Z, ACCURACY, PREDICTION, DEBUG,
        )  # fmt: skip
    # Data decide whether there is a second turn, on the device.
    trips = tl.where(tl.sum(out_of_range, axis=0) == 0.0, 0, trips)
    for trip in range(trips):
        _rows(
            trip, first, last, LOGITS, TARGET, WEIGHT, weight_sum, LOSS, LABEL, SHIFT, TOTAL, CLASS_WEIGHT, Z_LOSS, CORRECT, PREDICTED,
            middle, inner, logits_outer, logits_middle, logits_row, target_outer, target_middle, target_row, out_outer, out_middle, out_row,
            ignore_index, label_smoothing, lse_square_scale, softcap, True,
            n_cols, ROWS, COLS, HEAD, ONE_BLOCK, NONE, SAVE, WEIGHTED, SMOOTHED, CAPPED, Z, ACCURACY, PREDICTION, DEBUG,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def cross_entropy_reduce_kernel(
    ROW_LOSS, LABEL, CLASS_WEIGHT, ROW_Z_LOSS, CORRECT, LOSS, Z_LOSS, TOKEN_ACCURACY, SCALES, count,
    BLOCK: tl.constexpr, MEAN: tl.constexpr, WEIGHTED: tl.constexpr, Z: tl.constexpr, ACCURACY: tl.constexpr,
):  # fmt: skip
    """One program: sums over the rows, lane by lane in a fixed order. SCALES: 1 / sum of class weights, 1 / kept rows; 0 for none.

    Moves: read a few values per row, write six.
    """
    lane = tl.arange(0, BLOCK)
    losses = tl.zeros((BLOCK,), tl.float32)
    kept = tl.zeros((BLOCK,), tl.float32)
    weights = tl.zeros((BLOCK,), tl.float32)
    z_losses = tl.zeros((BLOCK,), tl.float32)
    correct = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        mask = lane < count - start
        # A row with an invalid target counts: its loss is NaN, and so is the result.
        mine = tl.where(tl.load(LABEL + start + lane, mask=mask, other=-1.0) < 0.0, 0.0, 1.0)
        kept += mine
        losses += tl.load(ROW_LOSS + start + lane, mask=mask, other=0.0)
        if WEIGHTED:
            weights += mine * tl.load(CLASS_WEIGHT + start + lane, mask=mask, other=0.0)
        if Z:
            z_losses += tl.load(ROW_Z_LOSS + start + lane, mask=mask, other=0.0)
        if ACCURACY:
            correct += tl.load(CORRECT + start + lane, mask=mask, other=0.0)
    rows = tl.sum(kept, axis=0)
    weight = rows
    if WEIGHTED:
        weight = tl.sum(weights, axis=0)
    per_weight = 1.0
    per_row = 1.0
    if MEAN:
        per_weight = tl.where(weight == 0.0, 0.0, 1.0 / weight)
        per_row = tl.where(rows == 0.0, 0.0, 1.0 / rows)
    loss = tl.sum(losses, axis=0) * per_weight
    if Z:
        z_loss = tl.sum(z_losses, axis=0) * per_row
        loss += z_loss
        if Z_LOSS is not None:
            tl.store(Z_LOSS, z_loss)
    if ACCURACY:
        tl.store(TOKEN_ACCURACY, tl.sum(correct, axis=0) * tl.where(rows == 0.0, 0.0, 1.0 / rows))
    tl.store(LOSS, loss)
    if MEAN:
        tl.store(SCALES, per_weight)
        tl.store(SCALES + 1, per_row)


@triton.jit(do_not_specialize=[*row_arguments("logits", "saved", "dloss", "gradient"), "saved_row", "dloss_row"])
def cross_entropy_backward_kernel(
    LOGITS, LABEL, SHIFT, TOTAL, CLASS_WEIGHT, WEIGHT, WEIGHT_SUM, SCALES, DLOSS, GRADIENT, outer, middle, inner,
    logits_outer, logits_middle, logits_row, saved_outer, saved_middle, saved_row, dloss_outer, dloss_middle, dloss_row,
    gradient_outer, gradient_middle, gradient_row, label_smoothing, lse_square_scale, softcap,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, MEAN: tl.constexpr, WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr, CAPPED: tl.constexpr, Z: tl.constexpr,
):  # fmt: skip
    """Gradient of the logits, which may be written over them. Moves: read the logits, write the gradient; a few values per row.

    With p = softmax(z) it is p * whole - [column is the target] * hit - class weight * spread, times 1 - tanh^2 under a soft cap.
    """
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    column = cols.to(tl.float32)
    per_weight = 1.0
    per_row = 1.0
    if MEAN:
        per_weight = tl.load(SCALES)
        per_row = tl.load(SCALES + 1)
    weight_sum = n_cols * 1.0
    if SMOOTHED and WEIGHTED:
        weight_sum = tl.load(WEIGHT_SUM)
    first, last, trips = my_rows(outer * middle, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x_base = row_address(LOGITS, block, row, middle, logits_outer, logits_middle, logits_row, ONE_BLOCK) + lane[:, None] * logits_row
        g_base = row_address(GRADIENT, block, row, middle, gradient_outer, gradient_middle, gradient_row, ONE_BLOCK) + (
            lane[:, None] * gradient_row
        )
        d_base = row_address(DLOSS, block, row, middle, dloss_outer, dloss_middle, dloss_row, ONE_BLOCK)
        saved = row_address(0, block, row, middle, saved_outer, saved_middle, saved_row, ONE_BLOCK) + lane * saved_row
        l_at = row_address(LABEL, block, row, middle, saved_outer, saved_middle, saved_row, ONE_BLOCK)
        label = tl.load(LABEL + saved, mask=exists, other=-1.0)
        shift = tl.load(SHIFT + saved, mask=exists, other=0.0)
        total = tl.load(TOTAL + saved, mask=exists, other=1.0)
        if ROWS <= 2:
            one = tl.load(l_at)
        if ROWS == 2:
            other = tl.load(l_at + tl.minimum(1, remaining - 1) * saved_row)
        # A NaN label, of an invalid target, makes its row NaN; an ignored row has no gradient.
        dloss = tl.load(d_base + lane * dloss_row, mask=exists, other=0.0).to(tl.float32)
        dloss = tl.where(label < 0.0, 0.0, tl.where(label == label, dloss, label))
        scaled = dloss * per_weight
        hit = scaled
        if WEIGHTED:
            hit *= tl.load(CLASS_WEIGHT + saved, mask=exists, other=0.0)
        whole = hit
        if SMOOTHED:
            spread = scaled * (label_smoothing / n_cols)
            hit *= 1.0 - label_smoothing
            whole = hit + spread * weight_sum
        if Z:
            whole += dloss * per_row * (shift + tl.log(total)) * (2.0 * lse_square_scale)
        whole = tl.where(label < 0.0, 0.0, whole / total)
        for start in range(0, n_cols, COLS):
            inside = start + cols < n_cols
            mask = exists[:, None] & inside[None, :]
            x = tl.load(x_base + (start + cols)[None, :], mask=mask, other=0.0).to(tl.float32)
            z = capped(x, softcap, CAPPED)
            g = tl.exp(z - shift[:, None]) * whole[:, None]
            turns = 1
            if ROWS == 2:
                # Few tiles hold a target; scalars tell which, and the others do without three passes of the vector unit.
                none_here = ((one < start) | (one >= start + COLS)) & ((other < start) | (other >= start + COLS))
                turns = tl.where(none_here, 0, 1)
            for turn in range(turns):
                # `turn` is 0: what depends on it is not moved out of the loop.
                # Of a single row the scalar: the vector unit would have to hand its own to the scalar unit in every tile.
                mine = one if ROWS == 1 else label[:, None]
                g = tl.where(column[None, :] == mine - (start + turn), g - hit[:, None], g)
            if SMOOTHED:
                if WEIGHTED:
                    g -= tl.load(WEIGHT + start + cols, mask=inside, other=0.0).to(tl.float32)[None, :] * spread[:, None]
                else:
                    g -= spread[:, None]
            if CAPPED:
                slope = z * (1.0 / softcap)
                g *= slope * slope * -1.0 + 1.0
            tl.store(g_base + (start + cols)[None, :], g.to(GRADIENT.dtype.element_ty), mask=mask)
