"""Gradients of a call of which some are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .execution import Mode


def gradients_of(
    function: Callable[..., torch.Tensor], given: Sequence[torch.Tensor], needs: Sequence[bool], upstream: torch.Tensor, mode: Mode
) -> list[torch.Tensor | None]:
    """Those of `function(*given)` that are needed, in the order of `given`, in `mode` and on its device."""
    leaves = [tensor.to(mode.device).requires_grad_(need) for tensor, need in zip(given, needs, strict=True)]
    with mode.enter():
        function(*leaves).backward(upstream.to(mode.device))
    return [leaf.grad for leaf, need in zip(leaves, needs, strict=True) if need]
