"""Drop-in module: torch.nn.Softmax with the fused kernel."""

from __future__ import annotations

import torch

from .op import softmax


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax; without `dim` it is the last dimension."""

    def __init__(self, dim: int | None = -1) -> None:
        super().__init__(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return softmax(x, -1 if self.dim is None else self.dim)
