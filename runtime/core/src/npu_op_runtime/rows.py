"""How row-wise kernels walk tensors of any rank and layout without copying them.

A row is the last dimension. The leading dimensions of all tensors of a call are sorted by the strides of the first one and
merged where every tensor allows it, so a transposed or sliced view becomes `outer` blocks of `inner` equally spaced rows.
Row i of this order is the same row whatever the other tensors look like: per-row results saved in forward (rstd, lse) line
up in backward.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rows:
    """`outer` x `inner` rows; `strides[i]` is (outer stride, row stride) of tensor i, in elements.

    `tensors` are the tensors to hand to the kernel: the given ones, except where a copy could not be avoided. `dense` says
    that every tensor is one block of back-to-back rows.
    """

    outer: int
    inner: int
    strides: tuple[tuple[int, int], ...]
    tensors: tuple[torch.Tensor, ...]
    dense: bool

    @property
    def count(self) -> int:
        return self.outer * self.inner


def rows_of(*tensors: torch.Tensor) -> Rows:
    """Rows of tensors of one shape whose first `len(shape) - 1` dimensions may be laid out in any way.

    A tensor whose last dimension is not contiguous is copied (a reduction over a strided dimension would read a cache
    line per element), and so are, with a warning, tensors that need more than two strides to reach their rows.
    """
    shape = tensors[0].shape
    width = shape[-1]
    if all(tensor.is_contiguous() for tensor in tensors):
        return Rows(1, math.prod(shape[:-1]), ((0, width),) * len(tensors), tensors, dense=True)
    tensors = tuple(t if t.stride(-1) == 1 or width == 1 else t.contiguous() for t in tensors)
    merged = _merge(shape, tensors)
    if len(merged) > 2:
        warnings.warn(
            f"copying inputs of shape {tuple(shape)}: their rows need {len(merged)} strides, kernels take 2", stacklevel=2
        )
        return rows_of(*(tensor.contiguous() for tensor in tensors))
    (outer, outer_strides), (inner, inner_strides) = [(1, (0,) * len(tensors))] * (2 - len(merged)) + merged
    dense = outer == 1 and all(stride == width for stride in inner_strides)
    return Rows(outer, inner, tuple(zip(outer_strides, inner_strides)), tensors, dense)


def _merge(shape: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[tuple[int, tuple[int, ...]]]:
    """The leading dimensions as (size, stride per tensor), outermost first, neighbours merged where all tensors allow it."""
    order = sorted((d for d in range(len(shape) - 1) if shape[d] != 1), key=lambda d: -tensors[0].stride(d))
    merged: list[tuple[int, tuple[int, ...]]] = []
    for dim in order:
        size, strides = shape[dim], tuple(tensor.stride(dim) for tensor in tensors)
        if merged and all(before == size * stride for before, stride in zip(merged[-1][1], strides)):
            merged[-1] = (merged[-1][0] * size, strides)
        else:
            merged.append((size, strides))
    return merged or [(1, tuple(tensor.shape[-1] for tensor in tensors))]
