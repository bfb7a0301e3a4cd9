"""Kernel of `partials.sum_partials`."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import my_chunk


@triton.jit(do_not_specialize=["count"])
def sum_partials_kernel(PARTIALS, OUT, count, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Reads count x width fp32, writes width: one pass, rows added by the program that owns the columns, always in the same order."""
    first, last = my_chunk(tl.cdiv(width, BLOCK))
    lane = tl.arange(0, ROWS)[:, None]
    last_start = (count - 1) // ROWS * ROWS
    for tile in range(first, last):
        columns = tile * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width
        base = PARTIALS + lane * width + columns[None, :]
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, last_start, ROWS):
            rows = tl.load(base + tl.cast(start, tl.int64) * width, mask=inside[None, :], other=0.0)
            total += tl.sum(rows, axis=0)
        # The last rows are added outside of the loop: bishengir-compile 1.2.0 accumulates into the double-buffered output tile where
        # it can (fp32 out) and then sets no barrier between two additions. The emulator's hazard check found it.
        mask = (lane < count - last_start) & inside[None, :]
        total += tl.sum(tl.load(base + tl.cast(last_start, tl.int64) * width, mask=mask, other=0.0), axis=0)
        tl.store(OUT + columns, total.to(OUT.dtype.element_ty), mask=inside)
