"""Device functions that several kernels share. Imports Triton: only an operator's kernel.py imports this."""

from __future__ import annotations

import triton
import triton.language as tl


def row_arguments(*tensors: str) -> list[str]:
    """Arguments of a row-wise kernel that depend on batch and sequence length: not specialised, or each length compiles again."""
    return ["outer", "middle", "inner", *(f"{tensor}_{level}" for tensor in tensors for level in ("outer", "middle"))]


@triton.jit
def my_chunk(tiles):
    """First and one-past-last tile of this program: contiguous chunks whose sizes differ by at most one."""
    program = tl.program_id(0)
    per_program = tiles // tl.num_programs(0)
    # No `%`: the NPU's integer remainder is a scalar loop on tensors, and a multiply-subtract costs the same on scalars.
    extra = tiles - per_program * tl.num_programs(0)
    first = program * per_program + tl.minimum(program, extra)
    return first, first + per_program + (program < extra).to(tl.int32)


# Elements by which flat memory is shared out: 512 bytes of half precision, a line of GM transfers.
_SHARE = tl.constexpr(256)


@triton.jit
def my_elements(elements, BLOCK: tl.constexpr, ONE_TILE: tl.constexpr):
    """This program's even share of flat memory, whatever the tiles: first and one-past-last element (int64), trips of BLOCK.

    ONE_TILE (CUDA, as many programs as tiles): there is nothing to share out, and no loop; the last element may be another program's.
    """
    if ONE_TILE:
        return tl.cast(tl.program_id(0), tl.int64) * BLOCK, tl.cast(elements, tl.int64), 1
    else:
        first, last = my_chunk(tl.cdiv(elements, _SHARE))
        first = tl.cast(first, tl.int64) * _SHARE
        last = tl.minimum(tl.cast(last, tl.int64) * _SHARE, elements)
        return first, last, tl.cdiv(last - first, BLOCK).to(tl.int32)


@triton.jit
def known_multiple(count):
    """`count`, which is a multiple of 16, in a form that tells the compiler so: CUDA then applies a mask to whole vectors."""
    return count // 16 * 16


@triton.jit
def my_rows(blocks, inner, ROWS: tl.constexpr, ONE_BLOCK: tl.constexpr, ONE_TILE: tl.constexpr = False):
    """This program's share of `blocks` x `inner` rows as (first, last, trips) for `row_tile`.

    ONE_BLOCK (blocks is 1) shares out rows, so that no program has more than one row too many; else tiles, none across blocks.
    ONE_TILE (CUDA, where a streaming kernel has as many programs as tiles): there is nothing to share out, and no loop.
    """
    if ONE_TILE:
        if ONE_BLOCK:
            return tl.program_id(0) * ROWS, inner, 1
        else:
            return tl.program_id(0), tl.program_id(0) + 1, 1
    else:
        if ONE_BLOCK:
            first, last = my_chunk(inner)
            trips = tl.cdiv(last - first, ROWS)
        else:
            first, last = my_chunk(blocks * tl.cdiv(inner, ROWS))
            trips = last - first
        return first, last, trips


@triton.jit
def row_tile(trip, first, last, inner, ROWS: tl.constexpr, ONE_BLOCK: tl.constexpr):
    """Block and first row of a trip's tile, and how many rows from there on are its own."""
    if ONE_BLOCK:
        block = 0
        row = first + trip * ROWS
        remaining = last - row
    else:
        tiles_per_block = tl.cdiv(inner, ROWS)
        tile = first + trip
        block = tile // tiles_per_block
        row = (tile - block * tiles_per_block) * ROWS
        remaining = inner - row
    return block, row, remaining


@triton.jit
def piece_tile(tile, inner, n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Block, first row and first column of a tile of ROWS x COLS; row tiles are the fastest, then column pieces, then blocks."""
    row_tiles = tl.cdiv(inner, ROWS)
    strip = tile // row_tiles
    block = strip // ((n_cols + COLS - 1) // COLS)
    row = (tile - strip * row_tiles) * ROWS
    column = (strip - block * ((n_cols + COLS - 1) // COLS)) * COLS
    return block, row, column


@triton.jit
def row_address(BASE, block, row, middle, outer_stride, middle_stride, row_stride, ONE_BLOCK: tl.constexpr):
    """Address of a row of a block; blocks lie as outer x middle. Scalar int64 arithmetic: offsets of large tensors pass 2^31."""
    address = BASE + tl.cast(row, tl.int64) * row_stride
    if not ONE_BLOCK:
        outer = block // middle
        inside = block - outer * middle
        address += tl.cast(outer, tl.int64) * outer_stride + tl.cast(inside, tl.int64) * middle_stride
    return address


@triton.jit
def row_sum(x, FOLD: tl.constexpr):
    """Sum of each row of a tile, one value per tile row.

    With FOLD > 1 the tile is one row in FOLD pieces: each piece is summed, then the sum is taken over FOLD copies of those few
    values, so that every piece gets the whole row's sum and no scalar appears.
    """
    if FOLD == 1:
        return tl.sum(x, axis=1)
    else:
        return tl.sum(tl.broadcast_to(tl.sum(x, axis=1)[None, :], (FOLD, FOLD)), axis=1)


@triton.jit
def row_max(x, FOLD: tl.constexpr):
    """Maximum of each row of a tile, one value per tile row; NaN is ignored. Otherwise as `row_sum`."""
    if FOLD == 1:
        return tl.max(x, axis=1)
    else:
        return tl.max(tl.broadcast_to(tl.max(x, axis=1)[None, :], (FOLD, FOLD)), axis=1)
