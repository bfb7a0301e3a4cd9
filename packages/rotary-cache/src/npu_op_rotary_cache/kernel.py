"""The kernel that gathers rows of cosines and sines by position."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_chunk


@triton.jit
def _gather_one_by_one(CACHE, POSITIONS, OUT, first, last, last_row, cache_row, position_step, COLS: tl.constexpr):
    cols = tl.arange(0, COLS)
    for token in range(first, last):
        position = tl.load(POSITIONS + tl.cast(token, tl.int64) * position_step)
        position = tl.minimum(tl.maximum(position, 0), last_row)
        row = tl.load(CACHE + tl.cast(position, tl.int64) * cache_row + cols)
        tl.store(OUT + tl.cast(token, tl.int64) * COLS + cols, row)


@triton.jit
def _gather(
    CACHE, POSITIONS, OUT, first, last, last_row, cache_row, position_step,
    COLS: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Tokens `first` to `last` in tiles: one load of positions, a transfer per row, one store. WHOLE: there are no others in the tiles."""
    cols = tl.arange(0, BLOCK)[None, :]
    lane = tl.arange(0, TOKENS).to(tl.int64)
    for token in range(first, last, TOKENS):
        positions = POSITIONS + tl.cast(token, tl.int64) * position_step + lane * position_step
        out = OUT + tl.cast(token, tl.int64) * COLS + (lane[:, None] * COLS + cols)
        if WHOLE:
            position = tl.minimum(tl.maximum(tl.load(positions), 0), last_row).to(tl.int64)
            tl.store(out, tl.load(CACHE + (position[:, None] * cache_row + cols)))
        else:
            exists = lane < last - token
            position = tl.load(positions, mask=exists, other=0)
            position = tl.minimum(tl.maximum(position, 0), last_row).to(tl.int64)
            address = CACHE + (position[:, None] * cache_row + cols)
            # No mask of tokens: those that do not exist read row 0, and a mask would select in the vector unit what to keep.
            if BLOCK == COLS:
                tl.store(out, tl.load(address), mask=exists[:, None])
            else:
                tl.store(out, tl.load(address, mask=cols < COLS, other=0.0), mask=exists[:, None] & (cols < COLS))


@triton.jit(do_not_specialize=["tokens", "last_row"])
def gather_rows_kernel(
    CACHE, POSITIONS, OUT, tokens, last_row, cache_row, position_step,
    COLS: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Moves: read a position and a row of the cache per token, write the row.

    Tiles of MANY tokens as long as there are so many, then of TOKENS: a tile waits once for its positions, and always moves whole.
    BLOCK is COLS on the NPU, where a gathered row is moved whole, whatever its mask. TOKENS = 1: rows of no whole blocks of UB.
    """
    first, last = my_chunk(tokens)
    if TOKENS == 1:
        _gather_one_by_one(CACHE, POSITIONS, OUT, first, last, last_row, cache_row, position_step, COLS)
    else:
        if MANY > 0:
            rest = first + (last - first) // MANY * MANY
            _gather(CACHE, POSITIONS, OUT, first, rest, last_row, cache_row, position_step, COLS, BLOCK, MANY, True)
            first = rest
        _gather(CACHE, POSITIONS, OUT, first, last, last_row, cache_row, position_step, COLS, BLOCK, TOKENS, False)
