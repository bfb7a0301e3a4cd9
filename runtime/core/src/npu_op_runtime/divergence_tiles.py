"""Device functions of the divergence losses. Imports Triton: only an operator's kernel.py imports this."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import known_multiple, my_chunk, row_address


@triton.jit
def my_pieces(outer, middle, inner, n_cols, BLOCK: tl.constexpr, FLAT: tl.constexpr, ALIGNED: tl.constexpr):
    """First and one-past-last tile of this program, and n_cols in a form that tells the compiler what it is a multiple of.

    A tile is BLOCK columns of one row. FLAT: there is one row, of all elements, which may be more than 2^31.
    """
    if ALIGNED:
        n_cols = known_multiple(n_cols)
    if FLAT:
        tiles = tl.cdiv(tl.cast(n_cols, tl.int64), BLOCK).to(tl.int32)
    else:
        tiles = outer * middle * inner * tl.cdiv(n_cols, BLOCK)
    first, last = my_chunk(tiles)
    return first, last, n_cols


@triton.jit
def piece(tile, inner, n_cols, BLOCK: tl.constexpr, FLAT: tl.constexpr):
    """Block, row and first column of a tile, and how many of its columns exist."""
    if FLAT:
        column = tl.cast(tile, tl.int64) * BLOCK
        return 0, 0, column, tl.minimum(n_cols - column, BLOCK).to(tl.int32)
    else:
        pieces = tl.cdiv(n_cols, BLOCK)
        at = tile // pieces
        column = (tile - at * pieces) * BLOCK
        block = at // inner
        return block, at - block * inner, column, tl.minimum(n_cols - column, BLOCK)


@triton.jit
def piece_address(BASE, block, row, column, middle, outer_stride, middle_stride, row_stride, FLAT: tl.constexpr, ONE_BLOCK: tl.constexpr):
    """Address of the first element of a tile."""
    if FLAT:
        return BASE + column
    else:
        return row_address(BASE, block, row, middle, outer_stride, middle_stride, row_stride, ONE_BLOCK) + column


@triton.jit
def kept_columns(
    LABELS, block, row, remaining, ignore_index, middle, outer_stride, middle_stride, row_stride,
    HAS_LABELS: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """How many columns of a tile to read: none of a row whose label is `ignore_index`."""
    if HAS_LABELS:
        label = tl.load(row_address(LABELS, block, row, middle, outer_stride, middle_stride, row_stride, ONE_BLOCK))
        return tl.where(label == ignore_index, 0, remaining)
    else:
        return remaining
