"""Kernels of the GRPO losses: rows of logits, a contiguous chunk of them per program, walked in tiles of ROWS x COLS.

Logits lie as `blocks` x `inner` rows (sequences x tokens); what belongs to a token is one value per row, contiguous. Arithmetic is fp32.
exp(x - shift) takes for `shift` the logit of the selected token, which the log-probability needs anyway, and not the row's maximum: then
one read is enough, and lanes of a tile add up by themselves until the row ends. The sum is one over the token's probability; a row where it
leaves the range of fp32 is read again, from its true maximum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_rows, row_address, row_tile

# Below every finite fp32: a start for maxima that, unlike -inf, can be subtracted from -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)

# A sum of exponentials above it may have lost terms to infinity; below it, its inverse times a gradient is a normal fp32 number.
HIGHEST_SUM = tl.constexpr(1e25)

# What depends on batch and length, or starts at any row: not specialised, or each batch would compile again.
LOGPS_DYNAMIC = ["IDS", "SHIFT", "TOTAL", "LOGP", "blocks", "inner", "x_block", "x_row"]
LOSS_DYNAMIC = [
    *("IDS", "ADVANTAGES", "POLICY", "SLOPE", "PENALTY", "OLD", "REF", "SHIFT", "TOTAL", "LOGP", "SPREAD"),
    *("LOSS", "KL", "CLIP", "COEFFICIENT"),
    *("blocks", "inner", "x_block", "x_row"),
]
GRADIENT_DYNAMIC = ["IDS", "SHIFT", "TOTAL", "COEFFICIENT", "blocks", "inner", "x_block", "x_row", "dx_block", "dx_row"]


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
def selected_logits(
    trip, first, last, X, BIAS, IDS, inner, x_block, x_row, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Of a trip's rows each one's logit at its selected token, NaN at one outside of the vocabulary.

    A scalar load per row: in the tile it would take a comparison and a selection for every column.
    """
    lane = tl.arange(0, ROWS)
    block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
    base = row_address(X, block, row, 1, x_block, 0, x_row, ONE_BLOCK)
    # Cast as vectors: the cast of a 16-bit scalar makes the scalar unit wait for the vector unit.
    x = tl.zeros((ROWS,), X.dtype.element_ty)
    if HAS_BIAS:
        bias = tl.zeros((ROWS,), BIAS.dtype.element_ty)
    unknown = tl.zeros((ROWS,), tl.float32)
    for i in tl.static_range(ROWS):
        at = tl.minimum(i, remaining - 1)
        token = tl.load(IDS + block * inner + row + at)
        # Never an address outside of the row, whatever the token.
        valid = (token >= 0) & (token < n_cols)
        column = tl.where(valid, token, 0)
        unknown = tl.where(lane == i, tl.where(valid, 0.0, float("nan")), unknown)
        x = tl.where(lane == i, tl.load(base + at * x_row + column), x)
        if HAS_BIAS:
            bias = tl.where(lane == i, tl.load(BIAS + column), bias)
    x = x.to(tl.float32) + unknown
    if HAS_BIAS:
        x += bias.to(tl.float32)
    if TEMPERED:
        x *= inverse_temperature
    return x


@triton.jit
def beside_tile(values, ROWS: tl.constexpr):
    """One value per row as what a tile is combined with: of a single row the scalar, once, and not in every tile."""
    if ROWS == 1:
        return tl.sum(values, axis=0)
    else:
        return values[:, None]


@triton.jit
def sum_of_exponentials(
    base, BIAS, end, exists, shift, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Of each row that exists, up to column `end`."""
    # Not a constant, for which the NPU's compiler would keep a tile of zeros.
    sums = tl.broadcast_to(tl.where(exists, 0.0, 1.0)[:, None], (ROWS, COLS))
    shift = beside_tile(shift, ROWS)
    for start in range(0, end, COLS):
        x = logits_tile(base, BIAS, start, exists, inverse_temperature, n_cols, COLS, HAS_BIAS, TEMPERED)
        sums += tl.exp(x - shift)
    return tl.sum(sums, axis=1)


@triton.jit
def mended(
    base, BIAS, exists, shift, total, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Shift and sum again, from the true maximum, of rows whose sum left the range of fp32; the others' as they are."""
    lost = 1.0 - tl.where(total < HIGHEST_SUM, 1.0, 0.0)
    # Data decide whether the loops have a turn, on the device.
    end = tl.where(tl.sum(lost, axis=0) == 0.0, 0, n_cols)
    tops = tl.broadcast_to(tl.where(exists, LOWEST, 0.0)[:, None], (ROWS, COLS))
    for start in range(0, end, COLS):
        x = logits_tile(base, BIAS, start, exists, inverse_temperature, n_cols, COLS, HAS_BIAS, TEMPERED)
        # Not tl.maximum: NaN loses here on every device.
        tops = tl.where(x > tops, x, tops)
    highest = tl.max(tops, axis=1)
    again = sum_of_exponentials(base, BIAS, end, exists, highest, inverse_temperature, n_cols, ROWS, COLS, HAS_BIAS, TEMPERED)
    return tl.where(lost > 0.0, highest, shift), tl.where(lost > 0.0, again, total)


@triton.jit
def log_probabilities(
    trip, first, last, X, BIAS, IDS, inner, x_block, x_row, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FEW: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    TEMPERED: tl.constexpr,
):  # fmt: skip
    """Of a trip's rows shift and sum of the exponentials, and the log-probability of the selected token."""
    lane = tl.arange(0, ROWS)
    block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
    exists = lane < remaining
    base = row_address(X, block, row, 1, x_block, 0, x_row, ONE_BLOCK) + lane[:, None] * x_row
    selected = selected_logits(
        trip, first, last, X, BIAS, IDS, inner, x_block, x_row, inverse_temperature,
        n_cols, ROWS, ONE_BLOCK, HAS_BIAS, TEMPERED,
    )  # fmt: skip
    total = sum_of_exponentials(base, BIAS, n_cols, exists, selected, inverse_temperature, n_cols, ROWS, COLS, HAS_BIAS, TEMPERED)
    shift, total = mended(base, BIAS, exists, selected, total, inverse_temperature, n_cols, ROWS, FEW, HAS_BIAS, TEMPERED)
    return shift, total, selected - shift - tl.log(total)


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
    row, gradient_row, BIAS, ids, one, remaining, x_row, dx_row, shift, total, coefficient, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, HAS_BIAS: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """coefficient * (1 at the selected token - probability), the gradient of logits where `coefficient` is that of the log-probability.

    `one` is the selected token of the first row.
    """
    lane = tl.arange(0, ROWS)
    exists = lane < remaining
    base = row + lane[:, None] * x_row
    gradient_base = gradient_row + lane[:, None] * dx_row
    if ROWS == 1:
        each = one
    else:
        each = tl.load(ids + lane, mask=exists, other=0)[:, None]
    share = beside_tile(-coefficient / total, ROWS)
    shift = beside_tile(shift, ROWS)
    coefficient = beside_tile(coefficient, ROWS)
    for start in range(0, n_cols, COLS):
        cols = start + tl.arange(0, COLS)
        x = logits_tile(base, BIAS, start, exists, inverse_temperature, n_cols, COLS, HAS_BIAS, TEMPERED)
        # A shift and a sum, and not their logarithm, which rounded would be off by more than the exponential.
        gradient = tl.exp(x - shift) * share
        turns = 1
        if ROWS == 1:
            # One tile holds the selected token; the scalar tells which, and the others do without its comparison and selection.
            turns = tl.where((one < start) | (one >= start + COLS), 0, 1)
        for turn in range(turns):
            # `turn` is 0: what depends on it is not moved out of the loop.
            here = tl.arange(0, COLS)[None, :] == each - (start + turn)
            gradient = tl.where(here, gradient + coefficient, gradient)
        mask = exists[:, None] & (cols < n_cols)[None, :]
        tl.store(gradient_base + cols[None, :], gradient.to(gradient_row.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=LOGPS_DYNAMIC)
def selected_logps_kernel(
    X, BIAS, IDS, SHIFT, TOTAL, LOGP, blocks, inner, x_block, x_row, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FEW: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    TEMPERED: tl.constexpr,
):  # fmt: skip
    """Moves: read logits once, write three values per row."""
    lane = tl.arange(0, ROWS)
    first, last, trips = my_rows(blocks, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        at = block * inner + row + lane
        shift, total, logp = log_probabilities(
            trip, first, last, X, BIAS, IDS, inner, x_block, x_row, inverse_temperature,
            n_cols, ROWS, COLS, FEW, ONE_BLOCK, HAS_BIAS, TEMPERED,
        )  # fmt: skip
        tl.store(SHIFT + at, shift, mask=exists)
        tl.store(TOTAL + at, total, mask=exists)
        tl.store(LOGP + at, logp, mask=exists)


@triton.jit(do_not_specialize=LOSS_DYNAMIC)
def grpo_kernel(
    X, DX, BIAS, IDS, ADVANTAGES, POLICY, SLOPE, PENALTY, OLD, REF, SHIFT, TOTAL, LOGP, SPREAD, LOSS, KL, CLIP, COEFFICIENT,
    blocks, inner, x_block, x_row, inverse_temperature, low, high, delta, sapo_positive, sapo_negative, scale,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FEW: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    TEMPERED: tl.constexpr, KIND: tl.constexpr, HAS_OLD: tl.constexpr, HAS_REF: tl.constexpr, CORRECTED: tl.constexpr, KNOWN: tl.constexpr,
    IN_PLACE: tl.constexpr,
):  # fmt: skip
    """From logits to the weighted loss of each token and, with IN_PLACE, to the gradient of the logits written over them: DX is X.

    By another name, because of one name the NPU's compiler orders every load after the store before it, which is of other columns.

    KNOWN (sequence level): SHIFT, TOTAL and LOGP are given and OLD is the logarithm of the ratio; otherwise the first two are
    written. POLICY, SLOPE and PENALTY are the weights of policy loss, its slope and KL; CORRECTED multiplies KL by the ratio. Moves:
    read logits (unless KNOWN), read and write them again with IN_PLACE.
    """
    lane = tl.arange(0, ROWS)
    first, last, trips = my_rows(blocks, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        x = row_address(X, block, row, 1, x_block, 0, x_row, ONE_BLOCK)
        ids = IDS + block * inner + row
        at = block * inner + row + lane
        # What a row needs is loaded before its logits, whose pass it would hold up at the end.
        advantages = tl.load(ADVANTAGES + at, mask=exists, other=0.0)
        of_policy = tl.load(POLICY + at, mask=exists, other=0.0)
        of_slope = tl.load(SLOPE + at, mask=exists, other=0.0)
        old = advantages
        if HAS_OLD:
            old = tl.load(OLD + at, mask=exists, other=0.0)
        ref = advantages
        penalty = advantages
        if HAS_REF:
            ref = tl.load(REF + at, mask=exists, other=0.0)
            penalty = tl.load(PENALTY + at, mask=exists, other=0.0)
        if IN_PLACE:
            one = tl.load(ids)
        if KNOWN:
            shift = tl.load(SHIFT + at, mask=exists, other=0.0)
            total = tl.load(TOTAL + at, mask=exists, other=1.0)
            logp = tl.load(LOGP + at, mask=exists, other=0.0)
            log_ratio = old
        else:
            shift, total, logp = log_probabilities(
                trip, first, last, X, BIAS, IDS, inner, x_block, x_row, inverse_temperature,
                n_cols, ROWS, COLS, FEW, ONE_BLOCK, HAS_BIAS, TEMPERED,
            )  # fmt: skip
            tl.store(SHIFT + at, shift, mask=exists)
            tl.store(TOTAL + at, total, mask=exists)
            if HAS_OLD:
                log_ratio = logp - old
            else:
                log_ratio = tl.zeros((ROWS,), tl.float32)
        ratio, policy, slope, kl, kl_slope, clip = token_terms(
            logp, log_ratio, ref, advantages, low, high, delta, sapo_positive, sapo_negative, KIND, HAS_REF
        )
        loss = of_policy * policy
        coefficient = of_slope * slope
        if HAS_REF:
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
            dx = row_address(DX, block, row, 1, x_block, 0, x_row, ONE_BLOCK)
            write_gradient(
                x, dx, BIAS, ids, one, remaining, x_row, x_row, shift, total, coefficient, inverse_temperature,
                n_cols, ROWS, COLS, HAS_BIAS, TEMPERED,
            )  # fmt: skip
        else:
            tl.store(COEFFICIENT + at, coefficient, mask=exists)


@triton.jit(do_not_specialize=GRADIENT_DYNAMIC)
def logits_gradient_kernel(
    X, DX, IDS, SHIFT, TOTAL, COEFFICIENT, blocks, inner, x_block, x_row, dx_block, dx_row, inverse_temperature,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Gradient of the logits from what the forward kept of each row. Moves: read logits, write their gradient."""
    lane = tl.arange(0, ROWS)
    first, last, trips = my_rows(blocks, inner, ROWS, ONE_BLOCK)
    for trip in range(trips):
        block, row, remaining = row_tile(trip, first, last, inner, ROWS, ONE_BLOCK)
        exists = lane < remaining
        at = block * inner + row + lane
        shift = tl.load(SHIFT + at, mask=exists, other=0.0)
        total = tl.load(TOTAL + at, mask=exists, other=1.0)
        coefficient = tl.load(COEFFICIENT + at, mask=exists, other=0.0)
        one = tl.load(IDS + block * inner + row)
        write_gradient(
            row_address(X, block, row, 1, x_block, 0, x_row, ONE_BLOCK), row_address(DX, block, row, 1, dx_block, 0, dx_row, ONE_BLOCK),
            X, IDS + block * inner + row, one, remaining, x_row, dx_row, shift, total, coefficient, inverse_temperature,
            n_cols, ROWS, COLS, False, TEMPERED,
        )  # fmt: skip
