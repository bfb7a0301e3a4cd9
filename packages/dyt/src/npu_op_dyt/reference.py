"""Dynamic Tanh in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch


def dyt_reference(x: torch.Tensor, alpha: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None = None) -> torch.Tensor:
    """tanh(alpha * x) * gamma (+ beta), as the authors of "Transformers without Normalization" write it; the dtype of x.

    Parameters of another dtype are promoted as PyTorch does, and the result is rounded to x.dtype.
    """
    y = torch.tanh(alpha * x) * gamma
    return (y if beta is None else y + beta).to(x.dtype)
