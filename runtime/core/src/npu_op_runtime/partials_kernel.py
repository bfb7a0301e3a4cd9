"""Kernel of `partials.sum_partials`."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import my_chunk


@triton.jit
def _column_sums(base, inside, count, pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of `count` rows of BLOCK columns from `base` on, rows added in their order, ROWS at a time."""
    lane = tl.arange(0, ROWS)[:, None]
    last_start = (count - 1) // ROWS * ROWS
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, last_start, ROWS):
        rows = tl.load(base + lane * pitch + tl.cast(start, tl.int64) * pitch, mask=inside[None, :], other=0.0)
        total += tl.sum(rows, axis=0)
    # The last rows are added outside of the loop: bishengir-compile 1.2.0 accumulates into the double-buffered output tile where
    # it can (fp32 out) and then sets no barrier between two additions. The emulator's hazard check found it.
    mask = (lane < count - last_start) & inside[None, :]
    return total + tl.sum(tl.load(base + lane * pitch + tl.cast(last_start, tl.int64) * pitch, mask=mask, other=0.0), axis=0)


@triton.jit(do_not_specialize=["count"])
def sum_partials_kernel(PARTIALS, OUT, TOTAL, count, width, extra, ROWS: tl.constexpr, BLOCK: tl.constexpr, SCALAR: tl.constexpr):
    """Reads count x (width + extra) fp32, writes width: one pass, rows added by the program that owns the columns, always in the same
    order. With SCALAR, a power of two >= extra, the last program adds the extra columns into one element."""
    first, last = my_chunk(tl.cdiv(width, BLOCK))
    for tile in range(first, last):
        columns = tile * BLOCK + tl.arange(0, BLOCK)
        total = _column_sums(PARTIALS + columns[None, :], columns < width, count, width + extra, ROWS, BLOCK)
        tl.store(OUT + columns, total.to(OUT.dtype.element_ty), mask=columns < width)
    if SCALAR > 0:  # noqa: SIM102
        # Not `and`: it would make a run-time value of the constant.
        if tl.program_id(0) == tl.num_programs(0) - 1:
            columns = tl.arange(0, SCALAR)
            total = _column_sums(PARTIALS + width + columns[None, :], columns < extra, count, width + extra, ROWS, SCALAR)
            tl.store(TOTAL + tl.arange(0, 1), tl.sum(total[None, :], axis=1).to(TOTAL.dtype.element_ty))
