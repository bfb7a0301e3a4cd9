"""Kernels of GroupNorm.

A sample is `channels` rows of `spatial` contiguous elements, and a group is D of these rows. A tile is GROUPS x SLOTS x COLS: groups, the
channels of each, elements of each channel. Of a tile with a single group, GROUPS is FOLD, its parts of D / FOLD channels: sums over it stay
vectors, where a scalar would stall the vector pipe. Statistics are GROUPS values; weight, bias and sums over channels GROUPS x SLOTS.
Groups are centred before they are squared. Tile bases are int64 scalars, offsets inside a tile int32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_chunk


@triton.jit
def _parameter(POINTER, offsets, inside, GIVEN: tl.constexpr):
    if GIVEN:
        return tl.load(POINTER + offsets, mask=inside, other=0.0).to(tl.float32)
    else:
        return 0.0


@triton.jit
def _centred(x, mean, inside, PADDED: tl.constexpr):
    """x - mean; PADDED columns stay 0, or they would enter the variance."""
    if PADDED:
        return tl.where(inside, x - mean, 0.0)
    else:
        return x - mean


@triton.jit
def _over_group(channel_sums, FOLD: tl.constexpr):
    """Sums of GROUPS x SLOTS values over each group; of a single one in FOLD parts, FOLD copies of its sum."""
    sums = tl.sum(channel_sums, axis=1)
    if FOLD > 1:
        return tl.sum(tl.broadcast_to(sums[None, :], (FOLD, FOLD)), axis=1)
    else:
        return sums


@triton.jit
def _statistic(POINTER, group, left, GROUPS: tl.constexpr, FOLD: tl.constexpr):
    """A statistic of each group of a tile from `group` on, of which `left` exist; FOLD copies of a single group's."""
    lane = tl.arange(0, GROUPS)
    if FOLD > 1:
        return tl.load(POINTER + group + 0 * lane)
    else:
        return tl.load(POINTER + group + lane, mask=lane < left, other=0.0)


@triton.jit
def _per_channel(groups, like):
    """A value of each group once for each of its channels, shaped as `like`, NaN where that is: an operand that is broadcast along one axis
    alone costs a whole tile nothing, and what is only reshaped the compiler broadcasts along two."""
    return tl.where(like == like, groups[:, None], like)


@triton.jit
def _store_statistic(POINTER, group, left, value, GROUPS: tl.constexpr, FOLD: tl.constexpr):
    lane = tl.arange(0, GROUPS)
    own = lane < 1 if FOLD > 1 else lane < left
    tl.store(POINTER + group + lane, value, mask=own)


@triton.jit
def _distance(middle, mean, inside, PADDED: tl.constexpr):
    """How far channels' means lie from their group's; PADDED channels stay 0."""
    if PADDED:
        return tl.where(inside, middle - mean[:, None], 0.0)
    else:
        return middle - mean[:, None]


@triton.jit
def _affine(distance, rstd, weight, bias, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr):
    """What each channel's centred elements are multiplied by and what is added to them, `distance` away from the group's mean."""
    if HAS_WEIGHT:
        scale = weight * rstd[:, None]
    else:
        scale = _per_channel(rstd, distance)
    offset = distance * scale
    if HAS_BIAS:
        offset = offset + bias
    return scale, offset


@triton.jit
def _partials(PARTIALS, row, width: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr):
    """Where a row of partial dweight and dbias goes: side by side, or alone."""
    base = PARTIALS + tl.cast(row, tl.int64) * (width * (NEED_DWEIGHT + NEED_DBIAS))
    return base, base + width * NEED_DWEIGHT


@triton.jit(do_not_specialize=["samples"])
def group_norm_forward_kernel(
    X, WEIGHT, BIAS, Y, MEAN, RSTD, samples, x_sample, x_channel, eps,
    channels: tl.constexpr, spatial: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr, SLOTS: tl.constexpr, FOLD: tl.constexpr,
    COLS: tl.constexpr, DENSE: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Whole groups resident. Moves: read x, write y (+ 8 bytes of statistics per group), weight and bias once per sample."""
    if DENSE:
        x_channel = spatial
    dtype: tl.constexpr = X.dtype.element_ty
    PADDED: tl.constexpr = spatial != COLS
    ROOT: tl.constexpr = (D * spatial) ** 0.5
    sample_tiles: tl.constexpr = (channels // D * FOLD + GROUPS - 1) // GROUPS
    part = tl.arange(0, GROUPS)
    slot = tl.arange(0, SLOTS)
    lane = part[:, None] * (D // FOLD) + slot[None, :]
    cols = tl.arange(0, COLS)[None, None, :]
    inside = cols < spatial
    first, last = my_chunk(samples * sample_tiles)
    for tile in range(first, last):
        sample = tile // sample_tiles
        group = (tile - sample * sample_tiles) * (GROUPS // FOLD)
        left = (channels // D - group) * FOLD
        channel = group * D
        exists = (part < left)[:, None] & (slot < D // FOLD)[None, :]
        mask = exists[:, :, None] & inside
        x_base = X + tl.cast(sample, tl.int64) * x_sample + tl.cast(channel, tl.int64) * x_channel
        y_base = Y + (tl.cast(sample, tl.int64) * channels + channel) * spatial
        x = tl.load(x_base + lane[:, :, None] * x_channel + cols, mask=mask, other=0.0).to(tl.float32)
        weight = _parameter(WEIGHT, channel + lane, exists, HAS_WEIGHT)
        bias = _parameter(BIAS, channel + lane, exists, HAS_BIAS)
        # Each channel is centred on its own mean, and the group's variance merged from theirs: values per channel are cheap.
        total = tl.sum(x, axis=2)
        middle = total * (1.0 / spatial)
        mean = _over_group(total, FOLD) * (1.0 / (D * spatial))
        x = _centred(x, middle[:, :, None], inside, PADDED)
        if dtype == tl.float32:
            # A mean far above the deviations is off by a rounding of itself: what is left of it is taken away again.
            rest = tl.sum(x, axis=2) * (1.0 / spatial)
            x = _centred(x, rest[:, :, None], inside, PADDED)
            middle += rest
            mean += _over_group(rest, FOLD) * (1.0 / D)
        # Steps of few values stand beside those of a whole tile that they do not wait for.
        squares = x * x
        distance = _distance(middle, mean, (slot < D // FOLD)[None, :], SLOTS != D // FOLD)
        squares = tl.sum(squares, axis=2)
        squares = squares + distance * distance * spatial
        rstd = ROOT / tl.sqrt(_over_group(squares, FOLD) + D * spatial * eps)
        scale, offset = _affine(distance, rstd, weight, bias, HAS_WEIGHT, HAS_BIAS)
        y = x * scale[:, :, None] + offset[:, :, None]
        tl.store(y_base + lane[:, :, None] * spatial + cols, y.to(dtype), mask=mask)
        if SAVE:
            statistics = tl.cast(sample, tl.int64) * (channels // D) + group
            _store_statistic(MEAN, statistics, left, mean, GROUPS, FOLD)
            _store_statistic(RSTD, statistics, left, rstd, GROUPS, FOLD)


@triton.jit(do_not_specialize=["samples"])
def group_norm_backward_kernel(
    X, WEIGHT, DY, MEAN, RSTD, DX, PARTIALS, samples, x_sample, x_channel, dy_sample, dy_channel,
    channels: tl.constexpr, spatial: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr, SLOTS: tl.constexpr, FOLD: tl.constexpr,
    COLS: tl.constexpr, DENSE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
):  # fmt: skip
    """Whole groups resident. Moves: read x and dy, write dx, and per sample and channel a partial dweight and dbias in fp32.

    With xhat = (x - mean) * rstd and g = dy * weight: dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd. The means over a group are sums
    over its channels of weight * dbias and weight * dweight. A bf16 mean is at most 2^8 * sqrt(elements) deviations: taken off sums and
    not off every x, it costs no more than a rounding of bf16.
    """
    if DENSE:
        x_channel = spatial
        dy_channel = spatial
    sample_tiles: tl.constexpr = (channels // D * FOLD + GROUPS - 1) // GROUPS
    part = tl.arange(0, GROUPS)
    slot = tl.arange(0, SLOTS)
    lane = part[:, None] * (D // FOLD) + slot[None, :]
    cols = tl.arange(0, COLS)[None, None, :]
    EXACT: tl.constexpr = X.dtype.element_ty != tl.bfloat16
    first, last = my_chunk(samples * sample_tiles)
    for tile in range(first, last):
        sample = tile // sample_tiles
        group = (tile - sample * sample_tiles) * (GROUPS // FOLD)
        left = (channels // D - group) * FOLD
        channel = group * D
        exists = (part < left)[:, None] & (slot < D // FOLD)[None, :]
        mask = exists[:, :, None] & (cols < spatial)
        x_base = X + tl.cast(sample, tl.int64) * x_sample + tl.cast(channel, tl.int64) * x_channel
        dy_base = DY + tl.cast(sample, tl.int64) * dy_sample + tl.cast(channel, tl.int64) * dy_channel
        statistics = tl.cast(sample, tl.int64) * (channels // D) + group
        mean = _statistic(MEAN, statistics, left, GROUPS, FOLD)
        rstd = _statistic(RSTD, statistics, left, GROUPS, FOLD)
        weight = _parameter(WEIGHT, channel + lane, exists, HAS_WEIGHT)
        # Elements behind the mask need no care: their dy is 0, and so is every product with it.
        dy = tl.load(dy_base + lane[:, :, None] * dy_channel + cols, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_base + lane[:, :, None] * x_channel + cols, mask=mask, other=0.0).to(tl.float32)
        level_unit = rstd * (1.0 / (D * spatial))
        slope_unit = level_unit * rstd
        dbias = tl.sum(dy, axis=2)
        if EXACT:
            x = x - _per_channel(mean, dbias)[:, :, None]
        dweight = tl.sum(dy * x, axis=2)
        if HAS_WEIGHT:
            level = _over_group(dbias * weight, FOLD)
            scale = weight * rstd[:, None]
        else:
            level = _over_group(dbias, FOLD)
            scale = _per_channel(rstd, dbias)
        if not EXACT:
            dweight = dweight - dbias * mean[:, None]
        slope = _over_group(dweight * scale, FOLD)
        dweight = dweight * rstd[:, None]
        level = level * level_unit
        slope = slope * slope_unit
        dweight_base, dbias_base = _partials(PARTIALS, sample, channels, NEED_DWEIGHT, NEED_DBIAS)
        if NEED_DWEIGHT:
            tl.store(dweight_base + channel + lane, dweight, mask=exists)
        if NEED_DBIAS:
            tl.store(dbias_base + channel + lane, dbias, mask=exists)
        if NEED_DX:
            dx = dy * scale[:, :, None]
            if not EXACT:
                shift = mean * slope
            slope = _per_channel(slope, dbias)
            if not EXACT:
                level = level - shift
            x = x * slope[:, :, None]
            level = _per_channel(level, dbias)
            dx = dx - x - level[:, :, None]
            dx_base = DX + (tl.cast(sample, tl.int64) * channels + channel) * spatial
            tl.store(dx_base + lane[:, :, None] * spatial + cols, dx.to(DX.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples"])
def group_norm_forward_wide_kernel(
    X, WEIGHT, BIAS, Y, MEAN, RSTD, samples, x_sample, x_channel, eps,
    channels: tl.constexpr, spatial: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr, SLOTS: tl.constexpr, FOLD: tl.constexpr,
    COLS: tl.constexpr, DENSE: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Groups larger than UB, walked twice in tiles of some channels x COLS elements, centred on the mean of the first tile, the pivot.

    The variance of a group is at least 1 / tiles * (pivot - mean)^2, so taking that square away costs log2(tiles) bits at most, however
    far the mean is from 0. Groups of one channel (D is 1) are walked GROUPS side by side. Moves: read x twice, write y.
    """
    if DENSE:
        x_channel = spatial
    PADDED: tl.constexpr = spatial // COLS * COLS != spatial
    FILLED: tl.constexpr = COLS if spatial > COLS else spatial
    # Channels that a program walks at a time, a multiple of those in a tile.
    SPAN: tl.constexpr = D if D > 1 else GROUPS
    sample_units: tl.constexpr = (channels + SPAN - 1) // SPAN
    part = tl.arange(0, GROUPS)
    slot = tl.arange(0, SLOTS)
    lane = part[:, None] * SLOTS + slot[None, :]
    cols = tl.arange(0, COLS)[None, None, :]
    first, last = my_chunk(samples * sample_units)
    for unit in range(first, last):
        sample = unit // sample_units
        channel = (unit - sample * sample_units) * SPAN
        left = channels - channel
        exists = (part < left)[:, None] & (slot < SLOTS)[None, :]
        x_base = X + tl.cast(sample, tl.int64) * x_sample + tl.cast(channel, tl.int64) * x_channel
        y_base = Y + (tl.cast(sample, tl.int64) * channels + channel) * spatial
        pivot = tl.load(x_base + lane[:, :, None] * x_channel + cols, mask=exists[:, :, None] & (cols < FILLED), other=0.0).to(tl.float32)
        pivot = tl.sum(pivot, axis=2) * (1.0 / FILLED)
        # Added across tiles as tiles and reduced once.
        total = tl.zeros((GROUPS, SLOTS, COLS), tl.float32)
        squares = tl.zeros((GROUPS, SLOTS, COLS), tl.float32)
        for row in range(0, SPAN, GROUPS * SLOTS):
            row_base = x_base + tl.cast(row, tl.int64) * x_channel
            for start in range(0, spatial, COLS):
                inside = start + cols < spatial
                x = tl.load(row_base + lane[:, :, None] * x_channel + (start + cols), mask=exists[:, :, None] & inside, other=0.0)
                x = _centred(x.to(tl.float32), pivot[:, :, None], inside, PADDED)
                total += x
                squares += x * x
        # Means and squares of what each row of the tile has walked, then of the group.
        shift = tl.sum(total, axis=2) * (GROUPS * SLOTS / (SPAN * spatial))
        mean = _over_group(pivot + shift, FOLD) * (1.0 / (FOLD * SLOTS))
        distance = pivot + shift - mean[:, None]
        rows = tl.sum(squares, axis=2) + (distance * distance - shift * shift) * (SPAN * spatial / (GROUPS * SLOTS))
        rstd = 1.0 / tl.sqrt(_over_group(rows, FOLD) * (1.0 / (D * spatial)) + eps)
        distance = pivot - mean[:, None]
        if SAVE:
            statistics = tl.cast(sample, tl.int64) * (channels // D) + channel // D
            _store_statistic(MEAN, statistics, left, mean, GROUPS, FOLD)
            _store_statistic(RSTD, statistics, left, rstd, GROUPS, FOLD)
        for row in range(0, SPAN, GROUPS * SLOTS):
            row_base = x_base + tl.cast(row, tl.int64) * x_channel
            out_base = y_base + tl.cast(row, tl.int64) * spatial
            weight = _parameter(WEIGHT, channel + row + lane, exists, HAS_WEIGHT)
            bias = _parameter(BIAS, channel + row + lane, exists, HAS_BIAS)
            scale, offset = _affine(distance, rstd, weight, bias, HAS_WEIGHT, HAS_BIAS)
            for start in range(0, spatial, COLS):
                mask = exists[:, :, None] & (start + cols < spatial)
                x = tl.load(row_base + lane[:, :, None] * x_channel + (start + cols), mask=mask, other=0.0).to(tl.float32)
                y = (x - pivot[:, :, None]) * scale[:, :, None] + offset[:, :, None]
                tl.store(out_base + lane[:, :, None] * spatial + (start + cols), y.to(Y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples"])
def group_norm_backward_wide_kernel(
    X, WEIGHT, DY, MEAN, RSTD, DX, PARTIALS, samples, x_sample, x_channel, dy_sample, dy_channel,
    channels: tl.constexpr, spatial: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr, SLOTS: tl.constexpr, FOLD: tl.constexpr,
    COLS: tl.constexpr, DENSE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
):  # fmt: skip
    """Gradients of groups larger than UB. Moves: read x and dy twice (once without dx), write dx, partials as the resident kernel."""
    if DENSE:
        x_channel = spatial
        dy_channel = spatial
    SPAN: tl.constexpr = D if D > 1 else GROUPS
    sample_units: tl.constexpr = (channels + SPAN - 1) // SPAN
    part = tl.arange(0, GROUPS)
    slot = tl.arange(0, SLOTS)
    lane = part[:, None] * SLOTS + slot[None, :]
    cols = tl.arange(0, COLS)[None, None, :]
    first, last = my_chunk(samples * sample_units)
    for unit in range(first, last):
        sample = unit // sample_units
        channel = (unit - sample * sample_units) * SPAN
        left = channels - channel
        exists = (part < left)[:, None] & (slot < SLOTS)[None, :]
        x_base = X + tl.cast(sample, tl.int64) * x_sample + tl.cast(channel, tl.int64) * x_channel
        dy_base = DY + tl.cast(sample, tl.int64) * dy_sample + tl.cast(channel, tl.int64) * dy_channel
        statistics = tl.cast(sample, tl.int64) * (channels // D) + channel // D
        dweight_base, dbias_base = _partials(PARTIALS, sample, channels, NEED_DWEIGHT, NEED_DBIAS)
        mean = _statistic(MEAN, statistics, left, GROUPS, FOLD)
        rstd = _statistic(RSTD, statistics, left, GROUPS, FOLD)
        level = tl.zeros((GROUPS,), tl.float32)
        slope = tl.zeros((GROUPS,), tl.float32)
        for row in range(0, SPAN, GROUPS * SLOTS):
            x_row = x_base + tl.cast(row, tl.int64) * x_channel
            dy_row = dy_base + tl.cast(row, tl.int64) * dy_channel
            total = tl.zeros((GROUPS, SLOTS, COLS), tl.float32)
            products = tl.zeros((GROUPS, SLOTS, COLS), tl.float32)
            for start in range(0, spatial, COLS):
                mask = exists[:, :, None] & (start + cols < spatial)
                x = tl.load(x_row + lane[:, :, None] * x_channel + (start + cols), mask=mask, other=0.0).to(tl.float32)
                dy = tl.load(dy_row + lane[:, :, None] * dy_channel + (start + cols), mask=mask, other=0.0).to(tl.float32)
                total += dy
                products += dy * (x - mean[:, None, None])
            dbias = tl.sum(total, axis=2)
            dweight = tl.sum(products, axis=2) * rstd[:, None]
            if NEED_DWEIGHT:
                tl.store(dweight_base + channel + row + lane, dweight, mask=exists)
            if NEED_DBIAS:
                tl.store(dbias_base + channel + row + lane, dbias, mask=exists)
            if NEED_DX:
                if HAS_WEIGHT:
                    weight = _parameter(WEIGHT, channel + row + lane, exists, HAS_WEIGHT)
                    dbias = dbias * weight
                    dweight = dweight * weight
                level += tl.sum(dbias, axis=1)
                slope += tl.sum(dweight, axis=1)
        if NEED_DX:
            slope = _over_group(slope[:, None], FOLD) * rstd * rstd * (1.0 / (D * spatial))
            level = _over_group(level[:, None], FOLD) * rstd * (1.0 / (D * spatial))
            dx_base = DX + (tl.cast(sample, tl.int64) * channels + channel) * spatial
            for row in range(0, SPAN, GROUPS * SLOTS):
                x_row = x_base + tl.cast(row, tl.int64) * x_channel
                dy_row = dy_base + tl.cast(row, tl.int64) * dy_channel
                dx_row = dx_base + tl.cast(row, tl.int64) * spatial
                weight = _parameter(WEIGHT, channel + row + lane, exists, HAS_WEIGHT)
                for start in range(0, spatial, COLS):
                    mask = exists[:, :, None] & (start + cols < spatial)
                    x = tl.load(x_row + lane[:, :, None] * x_channel + (start + cols), mask=mask, other=0.0).to(tl.float32)
                    dy = tl.load(dy_row + lane[:, :, None] * dy_channel + (start + cols), mask=mask, other=0.0).to(tl.float32)
                    if HAS_WEIGHT:
                        dx = dy * (weight * rstd[:, None])[:, :, None]
                    else:
                        dx = dy * rstd[:, None, None]
                    dx = dx - (x - mean[:, None, None]) * slope[:, None, None] - level[:, None, None]
                    tl.store(dx_row + lane[:, :, None] * spatial + (start + cols), dx.to(DX.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples", "parts"])
def group_norm_forward_narrow_kernel(
    X, WEIGHT, BIAS, Y, MEAN, RSTD, samples, x_sample, eps, parts,
    groups: tl.constexpr, width: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Few elements per channel: a tile is one group of ROWS samples, its parameters one resident row, one value per element of a group.

    The samples of a group are walked in `parts` parts. Moves: read x, write y (+ 8 bytes of statistics per group), parameters per part.
    """
    dtype: tl.constexpr = X.dtype.element_ty
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    inside = (cols < width)[None, :]
    part_tiles = tl.cdiv(tl.cdiv(samples, ROWS), parts)
    first, last = my_chunk(groups * parts)
    for unit in range(first, last):
        group = unit // parts
        begin = (unit - group * parts) * part_tiles * ROWS
        end = tl.minimum(begin + part_tiles * ROWS, samples)
        weight = _parameter(WEIGHT, group * width + cols[None, :], inside, HAS_WEIGHT)
        bias = _parameter(BIAS, group * width + cols[None, :], inside, HAS_BIAS)
        for trip in range(tl.cdiv(end - begin, ROWS)):
            sample = begin + trip * ROWS
            exists = lane < end - sample
            mask = exists[:, None] & inside
            x_base = X + tl.cast(sample, tl.int64) * x_sample + group * width
            y_base = Y + tl.cast(sample, tl.int64) * (groups * width) + group * width
            x = tl.load(x_base + lane[:, None] * x_sample + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            mean = tl.sum(x, axis=1) * (1.0 / width)
            x = _centred(x, mean[:, None], inside, width != COLS)
            if dtype == tl.float32:
                rest = tl.sum(x, axis=1) * (1.0 / width)
                x = _centred(x, rest[:, None], inside, width != COLS)
                mean += rest
            rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) * (1.0 / width) + eps)
            y = x * rstd[:, None]
            if HAS_WEIGHT:
                y = y * weight
            if HAS_BIAS:
                y = y + bias
            tl.store(y_base + lane[:, None] * (groups * width) + cols[None, :], y.to(dtype), mask=mask)
            if SAVE:
                statistics = tl.cast(sample, tl.int64) * groups + group
                tl.store(MEAN + statistics + lane * groups, mean, mask=exists)
                tl.store(RSTD + statistics + lane * groups, rstd, mask=exists)


@triton.jit(do_not_specialize=["samples", "parts"])
def group_norm_backward_narrow_kernel(
    X, WEIGHT, DY, MEAN, RSTD, DX, PARTIALS, samples, x_sample, dy_sample, parts,
    groups: tl.constexpr, width: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, NEED_DX: tl.constexpr, NEED_DWEIGHT: tl.constexpr, NEED_DBIAS: tl.constexpr,
):  # fmt: skip
    """Gradients of the narrow layout. Moves: read x and dy, write dx, per part a row of partial dweight and dbias in fp32."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    inside = (cols < width)[None, :]
    part_tiles = tl.cdiv(tl.cdiv(samples, ROWS), parts)
    first, last = my_chunk(groups * parts)
    for unit in range(first, last):
        group = unit // parts
        part = unit - group * parts
        begin = part * part_tiles * ROWS
        end = tl.minimum(begin + part_tiles * ROWS, samples)
        weight = _parameter(WEIGHT, group * width + cols[None, :], inside, HAS_WEIGHT)
        dweight = tl.zeros((COLS,), tl.float32)
        dbias = tl.zeros((COLS,), tl.float32)
        for trip in range(tl.cdiv(end - begin, ROWS)):
            sample = begin + trip * ROWS
            exists = lane < end - sample
            mask = exists[:, None] & inside
            x_base = X + tl.cast(sample, tl.int64) * x_sample + group * width
            dy_base = DY + tl.cast(sample, tl.int64) * dy_sample + group * width
            statistics = tl.cast(sample, tl.int64) * groups + group
            mean = tl.load(MEAN + statistics + lane * groups, mask=exists, other=0.0)[:, None]
            rstd = tl.load(RSTD + statistics + lane * groups, mask=exists, other=0.0)[:, None]
            x = tl.load(x_base + lane[:, None] * x_sample + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + lane[:, None] * dy_sample + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            # Elements behind the mask need no care: their dy is 0, and so is every product with it.
            xhat = (x - mean) * rstd
            product = dy * xhat
            if NEED_DWEIGHT:
                dweight += tl.sum(product, axis=0)
            if NEED_DBIAS:
                dbias += tl.sum(dy, axis=0)
            if NEED_DX:
                if HAS_WEIGHT:
                    product = product * weight
                    dy = dy * weight
                slope = tl.sum(product, axis=1) * (1.0 / width)
                level = tl.sum(dy, axis=1) * (1.0 / width)
                dx = (dy - xhat * slope[:, None] - level[:, None]) * rstd
                dx_base = DX + tl.cast(sample, tl.int64) * (groups * width) + group * width
                tl.store(dx_base + lane[:, None] * (groups * width) + cols[None, :], dx.to(DX.dtype.element_ty), mask=mask)
        dweight_base, dbias_base = _partials(PARTIALS, part, groups * width, NEED_DWEIGHT, NEED_DBIAS)
        if NEED_DWEIGHT:
            tl.store(dweight_base + group * width + cols, dweight, mask=cols < width)
        if NEED_DBIAS:
            tl.store(dbias_base + group * width + cols, dbias, mask=cols < width)
