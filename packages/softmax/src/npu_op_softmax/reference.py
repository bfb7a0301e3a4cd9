"""Softmax in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch


def softmax_reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """torch.softmax(x, dim): exp(x - max) / sum(exp(x - max)), evaluated by PyTorch in fp32 for half precision."""
    return torch.softmax(x, dim)
