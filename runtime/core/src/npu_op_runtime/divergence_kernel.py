"""Kernels of `divergence`: what surrounds the walk of a divergence loss over its inputs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def sum_loss_kernel(PARTIALS, LOSS, count, BLOCK: tl.constexpr):
    """Reads `count` fp32 partial sums, at most BLOCK, and writes their sum: one program, always in the same order."""
    lane = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(PARTIALS + lane, mask=lane < count, other=0.0), axis=0)
    tl.store(LOSS, total.to(LOSS.dtype.element_ty))


@triton.jit(do_not_specialize=["rows", "ignore_index", "columns"])
def kept_scale_kernel(LABELS, SCALE, rows, ignore_index, columns, BLOCK: tl.constexpr):
    """Reads the labels and writes 1 / (rows whose label is not `ignore_index` x columns), 0 if there are none: one program."""
    lane = tl.arange(0, BLOCK)
    ignored = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        label = tl.load(LABELS + start + lane, mask=lane < rows - start, other=0).to(tl.int32)
        # What lies behind the mask is taken for kept and not counted below.
        ignored += ((label == ignore_index) & (lane < rows - start)).to(tl.float32)
    kept = rows - tl.sum(ignored, axis=0)
    tl.store(SCALE, tl.where(kept > 0.0, 1.0 / (tl.maximum(kept, 1.0) * columns), 0.0))
