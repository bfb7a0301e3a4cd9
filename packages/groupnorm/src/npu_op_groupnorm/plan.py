"""Tiles of the GroupNorm kernels: which of the three layouts a call takes, and its sizes. Plain arithmetic, no device needed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from npu_op_runtime.device import Target
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer, next_power_of_2, plan_rows

# Below this many elements per channel a tile of channels is mostly padding: the UB block of 32 bytes is 16 elements of 2 bytes.
_NARROW = 16

# UB that the compiler takes beyond the declared buffers, and elements above which a tile is no faster (as the runtime's planner).
_UB_RESERVE_BYTES = 4096
_MAX_TILE_ELEMENTS = 16384

# Vectors of one fp32 value per row of a tile, and parameters streamed beside them.
_ROW_BYTES = 64

# Copies of a group's sum, squared: a tile of its own.
_MAX_FOLD = 64

_CUDA_RESIDENT_ELEMENTS = 16384
_CUDA_TILE_ELEMENTS = 4096
# Fewer warps wait for one another in the reductions (measured on an H200, groups of 2048: 19.1 us of 21.4 forward, 35.0 of 37.4 backward).
_CUDA_RESIDENT_ELEMENTS_PER_WARP = 1024
_CUDA_WIDE_ELEMENTS_PER_WARP = 512


@dataclass(frozen=True)
class GroupPlan:
    """Tile of a kernel, named as its constants are.

    "resident": tiles of whole groups, `groups` x `slots` channels x `cols`; "wide": of some channels of a group; both in `fold` parts where
    the group is a single one. "narrow": one group of `rows` samples.
    """

    layout: Literal["resident", "wide", "narrow"]
    cols: int
    groups: int = 1
    slots: int = 1
    fold: int = 1
    rows: int = 1
    num_warps: int = 4


@functools.cache
def plan_groups(
    target: Target, groups: int, depth: int, spatial: int, itemsize: int, streams: int, parameter_rows: int, *, dense: bool
) -> GroupPlan:
    """Tile for samples of `groups` groups of `depth` channels of `spatial` elements.

    Args:
        target: SoC or CUDA device.
        itemsize: bytes of an element of x.
        streams: tensors of x's size that the kernel moves, 2 forward and 3 backward.
        parameter_rows: rows of parameters or their sums that the narrow kernel holds.
        dense: the channels of a sample lie back to back, in every input.
    """
    if spatial < _NARROW and dense:
        narrow = _narrow(target, depth * spatial, itemsize, streams, parameter_rows)
        if narrow:
            return narrow
    if target.backend == "cuda":
        return _cuda(groups, depth, spatial)
    cols = _round_up(spatial, UB_BLOCK_BYTES // itemsize)
    # Three work tiles beside the streams leave every pipe free of the others; two are enough where no more than one group fits.
    for work in (3, 2):
        rows = _rows_that_fit(target, cols, 2 * streams * itemsize + 4 * work)
        fitting = min(rows // depth, groups)
        if fitting == 0 or (work == 2 and fitting > 1):
            continue
        # Even tiles of a sample's groups; one channel alone would be a scalar.
        tile = max(-(-groups // -(-groups // fitting)), 2 if depth == 1 else 1)
        fold = 1 if tile > 1 else _fold(depth)
        if tile * depth <= rows and (tile > 1 or fold > 1):
            return GroupPlan("resident", cols, tile * fold, depth // fold, fold)
    return _wide(target, depth, spatial, itemsize, streams)


def _wide(target: Target, depth: int, spatial: int, itemsize: int, streams: int) -> GroupPlan:
    granule = UB_BLOCK_BYTES // itemsize
    # Two sums that are added across tiles, two work tiles, and what holding padded columns at 0 takes: in fp32, which no cast copies, more.
    element_bytes = 2 * streams * itemsize + (32 if itemsize == 4 else 24)

    def fitting(rows: int) -> int:
        elements = ((target.ub_bytes - _UB_RESERVE_BYTES) // rows - _ROW_BYTES) // element_bytes
        return min(elements, _MAX_TILE_ELEMENTS // rows) // granule * granule

    def piece(rows: int) -> int:
        pieces = -(-spatial // fitting(rows))
        # Pieces that leave nothing over need no mask, even if they are up to half shorter.
        even = (count for count in range(pieces, 2 * pieces + 1) if spatial % (count * granule) == 0)
        return _round_up(-(-spatial // next(even, pieces)), granule)

    if depth == 1:
        return GroupPlan("wide", piece(2), groups=2)
    # Whole tiles of a group's channels, the largest tile, then the longest pieces.
    divisors = [rows for rows in range(2, depth + 1) if depth % rows == 0 and fitting(rows) > 0]
    if not divisors:
        raise ValueError(f"no tile of groups of {depth} channels fits the UB of {target.ub_bytes} bytes: {depth} has only large divisors")
    rows = max(divisors, key=lambda rows: (rows * piece(rows), piece(rows)))
    fold = _fold(rows)
    return GroupPlan("wide", piece(rows), fold, rows // fold, fold)


def _fold(rows: int) -> int:
    """Parts in which a single group's rows are summed: none where that takes more copies than a scalar costs."""
    factor = _smallest_factor(rows)
    return factor if factor <= _MAX_FOLD else 1


def _rows_that_fit(target: Target, cols: int, element_bytes: int) -> int:
    return min((target.ub_bytes - _UB_RESERVE_BYTES) // (cols * element_bytes + _ROW_BYTES), _MAX_TILE_ELEMENTS // cols)


def _narrow(target: Target, width: int, itemsize: int, streams: int, parameter_rows: int) -> GroupPlan | None:
    stream = Buffer(itemsize, streamed=True)
    # Sums over the rows of a tile fold into a scratch of their own; each value per row takes a block of UB.
    vectors = (*(Buffer(4, "columns"),) * (parameter_rows + 2), *(Buffer(UB_BLOCK_BYTES, "rows", streamed=True),) * 2)
    tiles = (*(stream,) * streams, *(Buffer(4),) * 3, *vectors)
    plan = plan_rows(target, width, tiles, tiles)
    if not plan.resident or plan.fold > 1:
        return None
    return GroupPlan("narrow", plan.cols, rows=plan.rows, num_warps=plan.num_warps)


def _cuda(groups: int, depth: int, spatial: int) -> GroupPlan:
    slots, cols = next_power_of_2(depth), next_power_of_2(spatial)
    if slots * cols <= _CUDA_RESIDENT_ELEMENTS:
        tile = min(next_power_of_2(groups), max(1, _CUDA_TILE_ELEMENTS // 2 // (slots * cols)))
        return GroupPlan("resident", cols, tile, slots, num_warps=_cuda_warps(tile * slots * cols, _CUDA_RESIDENT_ELEMENTS_PER_WARP))
    cols = min(cols, _CUDA_TILE_ELEMENTS)
    # A power of two that divides the channels of a group, so that no tile spans two of them.
    rows = min(depth & -depth, _CUDA_TILE_ELEMENTS // cols)
    return GroupPlan("wide", cols, slots=rows, num_warps=_cuda_warps(rows * cols, _CUDA_WIDE_ELEMENTS_PER_WARP))


def _cuda_warps(elements: int, elements_per_warp: int) -> int:
    return min(16, max(1, elements // elements_per_warp))


def _smallest_factor(value: int) -> int:
    return next((factor for factor in range(2, value) if value % factor == 0), value)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
