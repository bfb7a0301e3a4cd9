"""Kernel of `partials.sum_partials`."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import my_chunk


@triton.jit(do_not_specialize=["count"])
def sum_partials_kernel(PARTIALS, OUT, count, width, BLOCK: tl.constexpr):
    """Reads count x width fp32, writes width: one pass, rows added in order by the program that owns the columns."""
    first, last = my_chunk(tl.cdiv(width, BLOCK))
    for tile in range(first, last):
        columns = tile * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width
        base = PARTIALS + columns
        total = tl.zeros((BLOCK,), tl.float32)
        for row in range(count - 1):
            total += tl.load(base + tl.cast(row, tl.int64) * width, mask=inside, other=0.0)
        # The last row is added outside of the loop: bishengir-compile 1.2.0 accumulates into the double-buffered output tile where it
        # can (fp32 out) and then sets no barrier between two additions. The emulator's hazard check found it.
        total += tl.load(base + tl.cast(count - 1, tl.int64) * width, mask=inside, other=0.0)
        tl.store(OUT + columns, total.to(OUT.dtype.element_ty), mask=inside)
