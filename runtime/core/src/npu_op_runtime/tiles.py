"""Device functions that several kernels share. Imports Triton: only an operator's kernel.py imports this."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def my_chunk(tiles):
    """First and one-past-last tile of this program: contiguous chunks whose sizes differ by at most one."""
    program = tl.program_id(0)
    per_program = tiles // tl.num_programs(0)
    # No `%`: the NPU's integer remainder is a scalar loop on tensors, and a multiply-subtract costs the same on scalars.
    extra = tiles - per_program * tl.num_programs(0)
    first = program * per_program + tl.minimum(program, extra)
    return first, first + per_program + (program < extra).to(tl.int32)


@triton.jit
def row_sum(x, FOLD: tl.constexpr):
    """Sum of each row of a tile, one value per tile row.

    With FOLD > 1 the tile is one row in FOLD pieces: the pieces are added first and the sum is taken over copies of that,
    so that every piece gets the whole row's sum and no scalar appears.
    """
    if FOLD == 1:
        return tl.sum(x, axis=1)
    else:
        return tl.sum(tl.broadcast_to(tl.sum(x, axis=0)[None, :], x.shape), axis=1)
