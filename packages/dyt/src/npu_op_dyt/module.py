"""Drop-in module: Dynamic Tanh in place of a normalisation layer."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_number, require_width

from .op import dyt


class DyT(torch.nn.Module):
    """tanh(alpha * x) * gamma + beta over the last dimension, with learnt alpha (one element), gamma and beta.

    Args:
        hidden_size: width of the last dimension.
        init_alpha: start of alpha; 0.5 is the paper's default.
        bias: False for no beta.

    Raises:
        TypeError, ValueError: `hidden_size` is no positive int, or `init_alpha` no number.
    """

    def __init__(
        self,
        hidden_size: int,
        init_alpha: float = 0.5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_width("hidden_size", hidden_size)
        require_number("init_alpha", init_alpha)
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.full((1,), init_alpha, device=device, dtype=dtype))
        self.gamma = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.beta = torch.nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dyt(x, self.alpha, self.gamma, self.beta)
