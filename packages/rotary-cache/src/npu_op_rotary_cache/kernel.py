"""The kernel that gathers rows of cosines and sines by position."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_chunk


@triton.jit(do_not_specialize=["tokens", "last_row"])
def gather_rows_kernel(
    CACHE, POSITIONS, OUT, tokens, last_row, cache_row, position_step, COLS: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr
):
    """Moves: read a position and a row of the cache per token, write the row.

    TOKENS is 1 on the NPU: a position is a scalar there, and its row one transfer. With more, positions are a vector of addresses.
    """
    cols = tl.arange(0, BLOCK)
    if TOKENS == 1:
        first, last = my_chunk(tokens)
        for token in range(first, last):
            position = tl.load(POSITIONS + tl.cast(token, tl.int64) * position_step)
            position = tl.minimum(tl.maximum(position, 0), last_row)
            row = tl.load(CACHE + tl.cast(position, tl.int64) * cache_row + cols)
            tl.store(OUT + tl.cast(token, tl.int64) * COLS + cols, row)
    else:
        token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
        exists = token < tokens
        position = tl.load(POSITIONS + token.to(tl.int64) * position_step, mask=exists, other=0).to(tl.int64)
        position = tl.minimum(tl.maximum(position, 0), last_row)
        mask = exists[:, None] & (cols < COLS)[None, :]
        rows = tl.load(CACHE + position[:, None] * cache_row + cols[None, :], mask=mask, other=0.0)
        tl.store(OUT + token.to(tl.int64)[:, None] * COLS + cols[None, :], rows, mask=mask)
