"""Gradients of hidden, weight and bias from those of the logits: of every chunk but the last in forward, of the last in backward.

Products are written by `out=` or in place, which autocast leaves alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from .chunks import Chunks


class Sums(NamedTuple):
    """What the chunks before the last give; without elements where there is no such chunk or the gradient is not needed.

    Attributes:
        hidden: (rows before the last chunk, H).
        weight: (V, H); in fp32, or in the weight's dtype.
        bias: (V,), fp32.
    """

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor


def empty_sums(chunks: Chunks, weight: torch.Tensor, accumulate_float32: bool, needed: Sequence[bool]) -> Sums:
    """Unwritten sums, of what is `needed` of hidden, weight and bias."""
    before = chunks.before
    # The product of one chunk is in the weight's dtype already: fp32 would hold nothing more.
    wide = accumulate_float32 and before > 1
    shapes = ((chunks.total - chunks.last, weight.shape[1]), tuple(weight.shape), (weight.shape[0],))
    dtypes = (weight.dtype, torch.float32 if wide else weight.dtype, torch.float32)
    return Sums(*(weight.new_empty(shape if need and before else (0,), dtype=dtype) for shape, dtype, need in zip(shapes, dtypes, needed)))


def add_chunk(sums: Sums, rows: slice, logits_gradient: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> None:
    """Adds a chunk before the last, `rows` of `hidden`; the first one starts the sums."""
    first = rows.start == 0
    if sums.hidden.numel():
        torch.mm(logits_gradient, weight, out=sums.hidden[rows])
    if sums.weight.numel():
        if sums.weight.dtype != weight.dtype:
            product = torch.empty_like(sums.weight, dtype=weight.dtype)
            torch.mm(logits_gradient.t(), hidden[rows], out=product)
            _add(sums.weight, product, first)
        elif first:
            torch.mm(logits_gradient.t(), hidden[rows], out=sums.weight)
        else:
            sums.weight.addmm_(logits_gradient.t(), hidden[rows])
    if sums.bias.numel():
        _add(sums.bias, logits_gradient.sum(0, dtype=torch.float32), first)


def _add(total: torch.Tensor, part: torch.Tensor, first: bool) -> None:
    if first:
        total.copy_(part)
    else:
        total.add_(part)


def grad_hidden_of(sums: Sums, rows: int, kept: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(rows, H), from the sums and the gradient of the last chunk's logits."""
    gradient = kept.new_empty((rows, weight.shape[1]))
    before = rows - kept.shape[0]
    if before:
        gradient[:before].copy_(sums.hidden)
    torch.mm(kept, weight, out=gradient[before:])
    return gradient


def grad_weight_of(sums: Sums, hidden: torch.Tensor, kept: torch.Tensor, overwrite: bool) -> torch.Tensor:
    """(V, H) likewise; in the memory of the sum, where that is in the weight's dtype and may be overwritten."""
    before = hidden.shape[0] - kept.shape[0]
    if before and sums.weight.dtype == kept.dtype:
        gradient = sums.weight if overwrite else sums.weight.clone()
        return gradient.addmm_(kept.t(), hidden[before:])
    gradient = kept.new_empty((kept.shape[1], hidden.shape[1]))
    torch.mm(kept.t(), hidden[before:], out=gradient)
    return torch.add(sums.weight, gradient, out=gradient) if before else gradient


def grad_bias_of(sums: Sums, rows: int, kept: torch.Tensor) -> torch.Tensor:
    """(V,) likewise."""
    total = kept.sum(0, dtype=torch.float32)
    if rows > kept.shape[0]:
        total += sums.bias
    return kept.new_empty(kept.shape[1]).copy_(total)
