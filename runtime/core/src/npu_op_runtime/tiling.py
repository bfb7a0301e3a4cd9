"""The tile planner: arithmetic on what a kernel keeps in UB, no device needed.

A kernel declares its live buffers; the planner finds the largest tile whose buffers fit the UB of the target with streamed
buffers counted twice (double buffering). The compile gate of the lab proves each plan against the memory plan of the
vendor's compiler, so a declaration that is too small shows as a failed gate and not as a slow kernel.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .device import Target

# Largest product of a grid that the NPU launches (triton-ascend rejects 65,536 and above).
MAX_GRID = 65535

# UB addresses are multiples of 32 bytes (`UB_ALIGN_SIZE` 256 bits, printed by bishengir-compile 1.2.0).
UB_BLOCK_BYTES = 32

# UB that the compiler takes beyond the declared buffers: per-row vectors padded to a block, scratch of broadcasts (256 B each).
_UB_RESERVE_BYTES = 4096

# A tile above this is no faster: DMA of 16 KiB and more runs at full rate, and the first load and last store are not hidden.
_MAX_TILE_ELEMENTS = 16384

# UB has 16 bank groups of 32 bytes: operands of an instruction that lie a multiple of 512 bytes apart are read one after the
# other, at half the rate (profiled for the element-wise add of CANN's asc-devkit samples). fp32 tiles of 64 elements more than a
# multiple of 128 put neighbouring buffers half a period apart.
_UB_BANK_BYTES = 512
_BANK_PERIOD = _UB_BANK_BYTES // 4
_BANK_SHIFT = _BANK_PERIOD // 2

# Pieces of a row that fills a tile by itself. A reduction is a tree that waits for itself at every level, and shorter pieces have fewer
# levels; the second one, over the pieces, is over a few values in any case.
_FOLDS = (16, 8, 4, 2)

# GM is read in lines of 512 bytes: a piece of a row that starts within one touches one line more (profiled for asc-devkit's data_copy).
_LINE_BYTES = 512

# Tall tiles: two lines a row hide the cost of a row's start, and a core's rows stay within half of its share of the smallest L2 (96 MiB).
_TALL_LINES = 2
_TALL_L2_BYTES = 1 << 20

# Rows of a tile: with more, vectors of one value per row outgrow the tile of a narrow row.
_MAX_TILE_ROWS = 256

# CUDA: elements a thread of a streaming kernel handles; 16 bf16 elements are two 16-byte loads.
_CUDA_ELEMENTS_PER_THREAD = 16
# More warps wait longer for one another in a row's reductions, so a wider row gives its threads more elements as long as their values fit
# the registers (measured on an H200 at 7168 columns, 8 warps against 16: LayerNorm forward 39 us of 51, softmax 35 of 42).
_CUDA_REDUCING_WARPS = 8
_CUDA_VALUES_PER_THREAD = 64
_CUDA_MAX_RESIDENT_COLS = 16384
_CUDA_TILE_ELEMENTS = 4096
_CUDA_TALL_ROWS = 8


class Buffer(NamedTuple):
    """Something that a kernel holds on chip. A tuple, because plans are looked up by their buffers at every call.

    Attributes:
        itemsize: bytes per element.
        extent: "tile" = rows x columns, "columns" = one row for all tiles (a weight), "rows" = one element per row.
        streamed: moved by DMA in the loop, so it exists twice while double-buffered.
    """

    itemsize: int
    extent: Literal["tile", "columns", "rows"] = "tile"
    streamed: bool = False

    @property
    def bytes(self) -> int:
        return self.itemsize * (2 if self.streamed else 1)


@dataclass(frozen=True)
class RowPlan:
    """Tile of a row-wise kernel: `rows` x `fold` x `cols`.

    `fold > 1` means that each row lies in the tile as `fold` pieces of `cols`. The planner does so with a single row: its reductions
    stay vectors, while a one-row tile would reduce to a scalar and stall the vector pipe at every row. `resident` rows are read once;
    otherwise the kernel walks a row in tiles of `cols` columns. `num_warps` matters on CUDA only.
    """

    rows: int
    fold: int
    cols: int
    resident: bool
    num_warps: int = 4

    def row_tiles(self, blocks: int, inner: int) -> int:
        """Tiles of a kernel that handles whole rows, of `blocks` blocks of `inner` rows: a tile never spans two blocks."""
        return blocks * -(-inner // self.rows)

    def tiles(self, blocks: int, inner: int, n_cols: int) -> int:
        """Tiles of a kernel that handles each column piece by itself."""
        return self.row_tiles(blocks, inner) * -(-n_cols // self.cols)


@dataclass(frozen=True)
class FlatPlan:
    """Tile of an element-wise kernel over contiguous memory: `block` elements."""

    block: int
    num_warps: int = 4


@functools.cache
def plan_rows(
    target: Target, n_cols: int, resident: tuple[Buffer, ...], tiled: tuple[Buffer, ...], *, roomy: tuple[Buffer, ...] = ()
) -> RowPlan:
    """Tile for rows of `n_cols` elements: whole rows if `resident` buffers fit, else column tiles with the `tiled` buffers.

    `resident` is what the compiler needs at least, with dead buffers reused. `roomy`, if given, is what it takes when there is room:
    then no pipe waits for memory that another one still reads, so it is preferred wherever two rows fit.

    Raises:
        ValueError: `n_cols` below 1, or not even the smallest tile fits.
    """
    if n_cols < 1:
        raise ValueError(f"n_cols must be at least 1 (got {n_cols})")
    if target.backend == "cuda":
        return _cuda_rows(n_cols, resident)
    granule = UB_BLOCK_BYTES // min(buffer.itemsize for buffer in resident)
    cols = _round_up(n_cols, granule)
    for buffers in filter(None, (roomy, resident)):
        rows = _rows_that_fit(target, cols, buffers)
        if rows >= 2:
            return RowPlan(rows, 1, cols, resident=True)
    for fold in _FOLDS:
        # A piece must be a whole number of 32-byte blocks, or the pieces of a row would need masks of their own.
        if n_cols % (fold * granule) == 0 and _fits(target, 1, n_cols, resident):
            return RowPlan(1, fold, n_cols // fold, resident=True)
    return _column_tiles(target, n_cols, granule, tiled)


@functools.cache
def plan_columns(target: Target, n_cols: int, buffers: tuple[Buffer, ...]) -> RowPlan:
    """Tile of a kernel that walks rows of any width in tiles of columns, at least two rows at a time on the NPU (a vocabulary).

    Raises:
        ValueError: `n_cols` below 1, or not even the smallest tile fits.
    """
    if n_cols < 1:
        raise ValueError(f"n_cols must be at least 1 (got {n_cols})")
    if target.backend == "cuda":
        return _cuda_rows(n_cols, buffers)
    return _column_tiles(target, n_cols, UB_BLOCK_BYTES // min(buffer.itemsize for buffer in buffers), buffers, fewest=1)


@functools.cache
def plan_tall(target: Target, n_cols: int, buffers: tuple[Buffer, ...]) -> RowPlan:
    """Tile of many rows and few columns, for a kernel that walks the same rows twice in column tiles and sums over rows as it goes.

    The second walk reads from L2, as long as the rows of a tile are few enough to stay there; partial sums in GM are touched once per
    tile of rows, hence many rows. Meant for gradients of rows wider than UB: a handful of rows fills such a tile badly.

    Raises:
        ValueError: `n_cols` below 1, or not even the smallest tile fits.
    """
    if n_cols < 1:
        raise ValueError(f"n_cols must be at least 1 (got {n_cols})")
    if target.backend == "cuda":
        return RowPlan(_CUDA_TALL_ROWS, 1, _CUDA_TILE_ELEMENTS // _CUDA_TALL_ROWS, resident=False)
    line = _LINE_BYTES // min(buffer.itemsize for buffer in buffers)
    cols = _TALL_LINES * line
    streamed = sum(buffer.itemsize for buffer in buffers if buffer.extent == "tile" and buffer.streamed)
    rows = min(_rows_that_fit(target, cols, buffers), max(2, _TALL_L2_BYTES // (n_cols * streamed)))
    if rows < 2:
        raise ValueError(f"no tile of {cols} columns fits the UB of {target.ub_bytes} bytes")
    while _fits(target, rows, cols + line, buffers) and cols < n_cols:
        cols += line
    return RowPlan(rows, 1, cols, resident=False)


@functools.cache
def plan_flat(target: Target, buffers: tuple[Buffer, ...]) -> FlatPlan:
    """Block of an element-wise kernel over contiguous memory with these buffers, all of extent "tile"."""
    if target.backend == "cuda":
        return FlatPlan(_CUDA_TILE_ELEMENTS // 2, num_warps=4)
    elements = _elements_that_fit(target, buffers)
    return FlatPlan(_round_down(elements - _BANK_SHIFT, _BANK_PERIOD) + _BANK_SHIFT)


@functools.cache
def plan_blocks(target: Target, n_cols: int, buffers: tuple[Buffer, ...]) -> RowPlan:
    """Tile of an element-wise kernel over strided rows of `n_cols`: as `plan_flat`, in even column pieces, several rows if short."""
    if target.backend == "cuda":
        cols = min(next_power_of_2(n_cols), _CUDA_TILE_ELEMENTS // 2)
        return RowPlan(_CUDA_TILE_ELEMENTS // 2 // cols, 1, cols, resident=cols >= n_cols)
    granule = UB_BLOCK_BYTES // min(buffer.itemsize for buffer in buffers)
    elements = _elements_that_fit(target, buffers)
    pieces = -(-n_cols // elements)
    cols = _round_up(-(-n_cols // pieces), granule)
    return RowPlan(max(1, elements // cols), 1, min(cols, _round_down(elements, granule)), resident=pieces == 1)


def off_bank_period(elements: int) -> bool:
    """Whether neighbouring fp32 tiles of this many elements lie half a bank period apart in UB."""
    return elements % _BANK_PERIOD == _BANK_SHIFT


def programs(target: Target, tiles: int, *, persistent: bool) -> int:
    """Number of programs for `tiles` tiles.

    On the NPU one program per core, each walking a contiguous chunk of tiles: further programs would only queue. On CUDA a
    streaming kernel takes one program per tile, a `persistent` one (with per-program partial sums) a few per multiprocessor.
    """
    if target.backend == "cuda":
        return min(tiles, 2 * target.cores) if persistent else tiles
    return min(tiles, target.cores, MAX_GRID)


def _fits(target: Target, rows: int, cols: int, buffers: tuple[Buffer, ...]) -> bool:
    used = _UB_RESERVE_BYTES
    for buffer in buffers:
        elements = {"tile": rows * cols, "columns": cols, "rows": rows}[buffer.extent]
        used += _round_up(elements * buffer.bytes, UB_BLOCK_BYTES)
    return used <= target.ub_bytes


def _elements_that_fit(target: Target, buffers: tuple[Buffer, ...]) -> int:
    return min((target.ub_bytes - _UB_BANK_BYTES) // sum(buffer.bytes for buffer in buffers), _MAX_TILE_ELEMENTS)


def _rows_that_fit(target: Target, cols: int, buffers: tuple[Buffer, ...]) -> int:
    rows = min(max(2, _MAX_TILE_ELEMENTS // cols), _MAX_TILE_ROWS)
    while rows > 1 and not _fits(target, rows, cols, buffers):
        rows -= 1
    return rows if _fits(target, rows, cols, buffers) else 0


def _column_tiles(target: Target, n_cols: int, granule: int, buffers: tuple[Buffer, ...], fewest: int = 2) -> RowPlan:
    line = _LINE_BYTES // UB_BLOCK_BYTES * granule
    # Two rows keep reductions vectors; then the widest tile, split evenly so that the last one is not a sliver.
    for pieces in range(fewest, n_cols // granule + 2):
        cols = _round_up(-(-n_cols // pieces), granule)
        if _fits(target, 2, cols, buffers):
            # Up to twice as many pieces, if they are whole lines and leave no rest: no masks, and no line read twice.
            exact = [count for count in range(pieces, 2 * pieces + 1) if n_cols % (count * line) == 0]
            cols = n_cols // exact[0] if exact else cols
            return RowPlan(_rows_that_fit(target, cols, buffers), 1, cols, resident=False)
    raise ValueError(f"no tile of {n_cols} columns fits the UB of {target.ub_bytes} bytes")


def _cuda_rows(n_cols: int, buffers: tuple[Buffer, ...]) -> RowPlan:
    cols = next_power_of_2(n_cols)
    resident = cols <= _CUDA_MAX_RESIDENT_COLS
    cols = cols if resident else _CUDA_TILE_ELEMENTS
    rows = max(1, _CUDA_TILE_ELEMENTS // 2 // cols)
    elements = rows * cols
    streams = sum(buffer.streamed and buffer.extent == "tile" for buffer in buffers)
    warps = min(elements // (32 * _CUDA_ELEMENTS_PER_THREAD), _CUDA_REDUCING_WARPS)
    while elements * streams > warps * 32 * _CUDA_VALUES_PER_THREAD and warps < 16:
        warps *= 2
    return RowPlan(rows, 1, cols, resident, num_warps=warps)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _round_down(value: int, multiple: int) -> int:
    return value // multiple * multiple


def next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()
