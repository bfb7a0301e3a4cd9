"""How row-wise kernels walk tensors of any rank and layout without copying them.

A row is the last dimension. The leading dimensions of all tensors of a call are sorted by the strides of the first one and
merged where every tensor allows it, so transposed and sliced views become `outer` x `middle` blocks of `inner` equally spaced rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch

# Strides that a kernel takes to reach a row: a transposed tensor beside a contiguous one needs three.
_LEVELS = 3


class Rows(NamedTuple):
    """`outer` x `middle` x `inner` rows; `strides[i]` is (outer, middle, row stride) of tensor i, in elements.

    `tensors` are what to hand to the kernel: the given inputs then outputs, except where a copy could not be avoided; after
    the launch `write_back()` moves results out of such copies. `dense` says that every tensor is one block of back-to-back rows.
    """

    outer: int
    middle: int
    inner: int
    strides: tuple[tuple[int, int, int], ...]
    tensors: tuple[torch.Tensor, ...]
    dense: bool
    copied_outputs: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    @property
    def blocks(self) -> int:
        return self.outer * self.middle

    @property
    def numbers(self) -> tuple[int, ...]:
        """`outer`, `middle`, `inner`, then the strides of each tensor: what a kernel takes."""
        return (self.outer, self.middle, self.inner, *[stride for strides in self.strides for stride in strides])

    def write_back(self) -> None:
        for output, copy in self.copied_outputs:
            output.copy_(copy)


def rows_of(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] = ()) -> Rows:
    """Rows of tensors with the same leading dimensions, in any layout; a tensor of one value per row has a last dimension of 1.

    An input whose last dimension is not contiguous is copied (a reduction over a strided dimension would read a cache line
    per element); with a warning, everything is copied when the rows need more than three strides.
    """
    tensors = (*inputs, *outputs)
    lead = tensors[0].shape[:-1]
    if not [tensor for tensor in tensors if not tensor.is_contiguous()]:  # all() of a generator takes three times as long
        return Rows(1, 1, lead.numel(), tuple([(0, 0, tensor.shape[-1]) for tensor in tensors]), tensors, True)
    order = sorted(range(len(lead)), key=tensors[0].stride, reverse=True)
    sorted_views = [tensor.permute(*order, -1) for tensor in tensors]
    views = [view if _rows_contiguous(view) else view.contiguous() for view in sorted_views]
    merged = _merge(views)
    if len(merged) > _LEVELS:
        warnings.warn(
            f"copying tensors of shape {tuple(tensors[0].shape)}: their rows need {len(merged)} strides, kernels take {_LEVELS}",
            stacklevel=2,
        )
        views = [view.contiguous() for view in sorted_views]
        merged = _merge(views)
    levels = [(1, (0,) * len(views))] * (_LEVELS - len(merged)) + merged
    (outer, outer_strides), (middle, middle_strides), (inner, row_strides) = levels
    return Rows(
        outer,
        middle,
        inner,
        tuple(zip(outer_strides, middle_strides, row_strides)),
        tuple(views),
        dense=len(merged) == 1 and all(stride == view.shape[-1] for stride, view in zip(row_strides, views)),
        copied_outputs=tuple(
            (before, after) for before, after in list(zip(sorted_views, views))[len(inputs) :] if before.data_ptr() != after.data_ptr()
        ),
    )


def _rows_contiguous(view: torch.Tensor) -> bool:
    return view.shape[-1] == 1 or view.stride(-1) == 1


def _merge(views: Sequence[torch.Tensor]) -> list[tuple[int, tuple[int, ...]]]:
    """The leading dimensions as (size, stride per tensor), outermost first, neighbours merged where all tensors allow it."""
    merged: list[tuple[int, tuple[int, ...]]] = []
    for dim, size in enumerate(views[0].shape[:-1]):
        if size == 1:
            continue
        strides = tuple(view.stride(dim) for view in views)
        if merged and all(before == size * stride for before, stride in zip(merged[-1][1], strides)):
            merged[-1] = (merged[-1][0] * size, strides)
        else:
            merged.append((size, strides))
    return merged or [(1, tuple(view.shape[-1] for view in views))]
