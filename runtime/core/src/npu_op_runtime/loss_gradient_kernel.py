"""Kernel of `loss_gradient`."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import my_chunk


@triton.jit(do_not_specialize=["elements"])
def scale_kernel(GRADIENT, DLOSS, DLOSS_BITS, OUT, elements, BLOCK: tl.constexpr, INPLACE: tl.constexpr, ONE_BITS: tl.constexpr):
    """Dense. Moves: read the gradient, write it; nothing where INPLACE (OUT is the gradient) and the factor is 1.

    DLOSS_BITS is DLOSS as an integer, ONE_BITS what it is for 1: the scalar unit compares those without asking the vector unit.
    """
    lane = tl.arange(0, BLOCK)
    factor = tl.load(DLOSS).to(tl.float32)
    first, last = my_chunk(tl.cdiv(tl.cast(elements, tl.int64), BLOCK).to(tl.int32))
    if INPLACE:
        last = tl.where(tl.load(DLOSS_BITS) == ONE_BITS, first, last)
    for tile in range(first, last):
        base = tl.cast(tile, tl.int64) * BLOCK
        mask = lane < tl.minimum(elements - base, BLOCK).to(tl.int32)
        gradient = tl.load(GRADIENT + base + lane, mask=mask, other=0.0).to(tl.float32)
        tl.store(OUT + base + lane, (gradient * factor).to(OUT.dtype.element_ty), mask=mask)
