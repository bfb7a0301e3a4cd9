"""Kernels of the GRPO losses: rows of logits, a contiguous chunk of them per program, walked in tiles of ROWS x COLS.

Logits lie as `blocks` x `inner` rows (sequences x tokens); what belongs to a token is one value per row, contiguous. Arithmetic is fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_tile

# Below every finite fp32: a start for running maxima that, unlike -inf, can be subtracted from -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)

# What depends on batch and length, or starts at any row: not specialised, or each batch would compile again.
LOGPS_DYNAMIC = ["IDS", "HIGHEST", "TOTAL", "LOGP", "blocks", "inner", "x_block", "x_row"]
LOSS_DYNAMIC = [
    *("IDS", "ADVANTAGES", "POLICY", "SLOPE", "PENALTY", "OLD", "REF", "HIGHEST", "TOTAL", "LOGP", "SPREAD"),
    *("LOSS", "KL", "CLIP", "COEFFICIENT"),
    *("blocks", "inner", "x_block", "x_row"),
]
GRADIENT_DYNAMIC = ["IDS", "HIGHEST", "TOTAL", "COEFFICIENT", "blocks", "inner", "x_block", "x_row", "dx_block", "dx_row"]


@triton.jit
def logits_tile(
    base, BIAS, start, exists, inverse_temperature,
    n_cols: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Logits of the distribution, -inf beyond the rows and the vocabulary."""
    cols = start + tl.arange(0, COLS)
    mask = exists[:, None] & (cols < n_cols)[None, :]
    x = tl.load(base + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(BIAS + cols, mask=cols < n_cols, other=0.0).to(tl.float32)[None, :]
    if TEMPERED:
        x *= inverse_temperature
    return x


@triton.jit
def selected_logps(
    base, BIAS, ids, exists, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Each row's maximum, sum of exponentials beneath it, and log-probability of its selected token, in one pass."""
    highest = tl.zeros((ROWS,), tl.float32) + LOWEST
    total = tl.zeros((ROWS,), tl.float32)
    # A tile, reduced once: a reduction per tile costs as much as all the rest of finding the token.
    chosen = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, n_cols, COLS):
        x = logits_tile(base, BIAS, start, exists, inverse_temperature, n_cols, COLS, HAS_BIAS, TEMPERED)
        higher = tl.maximum(highest, tl.max(x, axis=1))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher[:, None]), axis=1)
        highest = higher
        chosen = tl.where((ids - start)[:, None] == tl.arange(0, COLS)[None, :], x, chosen)
    return highest, total, tl.sum(chosen, axis=1) - highest - tl.log(total)


@triton.jit
def token_terms(
    logp, log_ratio, ref, advantages, low, high, delta, sapo_positive, sapo_negative, KIND: tl.constexpr, HAS_REF: tl.constexpr,
):  # fmt: skip
    """Ratio, policy loss and its slope in logp, KL estimate and its slope, and -1, 0 or 1: clipped from below, not, from above."""
    ratio = tl.exp(log_ratio)
    if KIND == "cispo":
        policy = -tl.minimum(ratio, high) * advantages
        slope = policy
        policy = policy * logp
        clip = tl.where((ratio > high) & (advantages > 0.0), 1.0, 0.0)
    elif KIND == "sapo":
        temperature = tl.where(advantages > 0.0, sapo_positive, sapo_negative)
        gate = 1.0 / (1.0 + tl.exp(temperature * (1.0 - ratio)))
        policy = -4.0 * gate / temperature * advantages
        slope = -4.0 * gate * (1.0 - gate) * advantages * ratio
        clip = tl.zeros_like(ratio)
    else:
        bounded = tl.minimum(ratio, delta)
        clipped = tl.minimum(tl.maximum(ratio, low), high)
        first = bounded * advantages
        second = clipped * advantages
        policy = -tl.minimum(first, second)
        # Where both are the minimum each passes half of the slope on, as in torch.min.
        of_first = tl.where(ratio <= delta, 1.0, 0.0)
        of_second = tl.where((ratio >= low) & (ratio <= high), 1.0, 0.0)
        passed = tl.where(first < second, of_first, tl.where(first > second, of_second, 0.5 * (of_first + of_second)))
        slope = -advantages * ratio * passed
        below = tl.where((bounded < low) & (advantages < 0.0), -1.0, 0.0)
        clip = tl.where((bounded > high) & (advantages > 0.0), 1.0, below)
    if HAS_REF:
        difference = ref - logp
        expected = tl.exp(difference)
        kl = expected - difference - 1.0
        kl_slope = 1.0 - expected
    else:
        kl = tl.zeros_like(logp)
        kl_slope = kl
    return ratio, policy, slope, kl, kl_slope, clip


@triton.jit
def write_gradient(
    base, gradient_base, BIAS, ids, exists, highest, total, coefficient, inverse_temperature,
    n_cols: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """coefficient * (1 at the selected token - probability), the gradient of logits where `coefficient` is that of the log-probability."""
    share = coefficient / total
    for start in range(0, n_cols, COLS):
        cols = start + tl.arange(0, COLS)
        x = logits_tile(base, BIAS, start, exists, inverse_temperature, n_cols, COLS, HAS_BIAS, TEMPERED)
        # A maximum and a sum, and not their logarithm, which rounded would be off by more than the exponential.
        gradient = tl.exp(x - highest[:, None]) * share[:, None]
        gradient = tl.where((ids - start)[:, None] == tl.arange(0, COLS)[None, :], coefficient[:, None], 0.0) - gradient
        tl.store(gradient_base + cols[None, :], gradient.to(dtype), mask=exists[:, None] & (cols < n_cols)[None, :])


@triton.jit(do_not_specialize=LOGPS_DYNAMIC)
def selected_logps_kernel(
    X, BIAS, IDS, HIGHEST, TOTAL, LOGP, blocks, inner, x_block, x_row, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Moves: read logits once, write three values per row."""
    lane = tl.arange(0, ROWS)
    first, last, trips = my_rows(blocks, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        base = row_address(X, block, row, 1, x_block, 0, x_row, ONE_BLOCK) + lane[:, None] * x_row
        at = block * inner + row + lane
        ids = tl.load(IDS + at, mask=exists, other=0)
        highest, total, logp = selected_logps(base, BIAS, ids, exists, inverse_temperature, n_cols, ROWS, COLS, HAS_BIAS, TEMPERED)
        tl.store(HIGHEST + at, highest, mask=exists)
        tl.store(TOTAL + at, total, mask=exists)
        tl.store(LOGP + at, logp, mask=exists)


@triton.jit(do_not_specialize=LOSS_DYNAMIC)
def grpo_kernel(
    X, BIAS, IDS, ADVANTAGES, POLICY, SLOPE, PENALTY, OLD, REF, HIGHEST, TOTAL, LOGP, SPREAD, LOSS, KL, CLIP, COEFFICIENT,
    blocks, inner, x_block, x_row, inverse_temperature, low, high, delta, sapo_positive, sapo_negative, scale,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    TEMPERED: tl.constexpr, KIND: tl.constexpr, HAS_OLD: tl.constexpr, HAS_REF: tl.constexpr, CORRECTED: tl.constexpr, KNOWN: tl.constexpr,
    IN_PLACE: tl.constexpr,
):  # fmt: skip
    """From logits to the weighted loss of each token and, with IN_PLACE, to the gradient of the logits written over them.

    KNOWN (sequence level): HIGHEST, TOTAL and LOGP are given and OLD is the logarithm of the ratio; otherwise the first two are
    written. POLICY, SLOPE and PENALTY are the weights of policy loss, its slope and KL; CORRECTED multiplies KL by the ratio. Moves:
    read logits (unless KNOWN), read and write them again with IN_PLACE.
    """
    lane = tl.arange(0, ROWS)
    first, last, trips = my_rows(blocks, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        base = row_address(X, block, row, 1, x_block, 0, x_row, ONE_BLOCK) + lane[:, None] * x_row
        at = block * inner + row + lane
        ids = tl.load(IDS + at, mask=exists, other=0)
        if KNOWN:
            highest = tl.load(HIGHEST + at, mask=exists, other=0.0)
            total = tl.load(TOTAL + at, mask=exists, other=1.0)
            logp = tl.load(LOGP + at, mask=exists, other=0.0)
            log_ratio = tl.load(OLD + at, mask=exists, other=0.0)
        else:
            highest, total, logp = selected_logps(base, BIAS, ids, exists, inverse_temperature, n_cols, ROWS, COLS, HAS_BIAS, TEMPERED)
            tl.store(HIGHEST + at, highest, mask=exists)
            tl.store(TOTAL + at, total, mask=exists)
            if HAS_OLD:
                log_ratio = logp - tl.load(OLD + at, mask=exists, other=0.0)
            else:
                log_ratio = tl.zeros((ROWS,), tl.float32)
        ref = logp
        if HAS_REF:
            ref = tl.load(REF + at, mask=exists, other=0.0)
        advantages = tl.load(ADVANTAGES + at, mask=exists, other=0.0)
        ratio, policy, slope, kl, kl_slope, clip = token_terms(
            logp, log_ratio, ref, advantages, low, high, delta, sapo_positive, sapo_negative, KIND, HAS_REF
        )
        loss = tl.load(POLICY + at, mask=exists, other=0.0) * policy
        coefficient = tl.load(SLOPE + at, mask=exists, other=0.0) * slope
        if HAS_REF:
            penalty = tl.load(PENALTY + at, mask=exists, other=0.0)
            if CORRECTED:
                if KNOWN:
                    coefficient += ratio * tl.load(SPREAD + at, mask=exists, other=0.0)
                else:
                    coefficient += ratio * penalty * kl
                kl *= ratio
                kl_slope *= ratio
            loss += penalty * kl
            coefficient += penalty * kl_slope
            tl.store(KL + at, kl, mask=exists)
        tl.store(LOSS + at, loss, mask=exists)
        tl.store(CLIP + at, clip, mask=exists)
        coefficient *= scale * inverse_temperature
        if IN_PLACE:
            write_gradient(
                base, base, BIAS, ids, exists, highest, total, coefficient, inverse_temperature,
                n_cols, COLS, HAS_BIAS, TEMPERED, X.dtype.element_ty,
            )  # fmt: skip
        else:
            tl.store(COEFFICIENT + at, coefficient, mask=exists)


@triton.jit(do_not_specialize=GRADIENT_DYNAMIC)
def logits_gradient_kernel(
    X, DX, IDS, HIGHEST, TOTAL, COEFFICIENT, blocks, inner, x_block, x_row, dx_block, dx_row, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Gradient of the logits from what the forward kept of each row. Moves: read logits, write their gradient."""
    lane = tl.arange(0, ROWS)
    first, last, trips = my_rows(blocks, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        base = row_address(X, block, row, 1, x_block, 0, x_row, ONE_BLOCK) + lane[:, None] * x_row
        gradient_base = row_address(DX, block, row, 1, dx_block, 0, dx_row, ONE_BLOCK) + lane[:, None] * dx_row
        at = block * inner + row + lane
        ids = tl.load(IDS + at, mask=exists, other=0)
        highest = tl.load(HIGHEST + at, mask=exists, other=0.0)
        total = tl.load(TOTAL + at, mask=exists, other=1.0)
        coefficient = tl.load(COEFFICIENT + at, mask=exists, other=0.0)
        write_gradient(
            base, gradient_base, X, ids, exists, highest, total, coefficient, inverse_temperature,
            n_cols, COLS, False, TEMPERED, DX.dtype.element_ty,
        )  # fmt: skip
