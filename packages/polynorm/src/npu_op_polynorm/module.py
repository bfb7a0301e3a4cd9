"""Drop-in module: PolyNorm as an activation."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_number

from .op import poly_norm


class PolyNorm(torch.nn.Module):
    """w0 * n(x^3) + w1 * n(x^2) + w2 * n(x) + b; weights start at 1/3, the bias at 0, as its authors have it.

    Raises:
        TypeError: `eps` is no number.
    """

    def __init__(self, eps: float = 1e-6, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        require_number("eps", eps)
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 1 / 3, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poly_norm(x, self.weight, self.bias, self.eps)
