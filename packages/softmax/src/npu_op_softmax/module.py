"""Drop-in module: torch.nn.Softmax with the fused kernel."""

from __future__ import annotations

import torch

from .op import require_dimension, softmax


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax; without `dim` it is the last dimension.

    Raises:
        TypeError: `dim` is neither an int nor None.
    """

    def __init__(self, dim: int | None = -1) -> None:
        if dim is not None:
            require_dimension(dim)
        super().__init__(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return softmax(x, -1 if self.dim is None else self.dim)
