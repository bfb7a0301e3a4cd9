"""The gated MLP of Gemma with the fused activation."""

from __future__ import annotations

import torch

from .op import geglu


class GEGLUMLP(torch.nn.Module):
    """down_proj(gelu(gate_proj(x)) * up_proj(x)), with the parameter names of transformers' GemmaMLP.

    Args:
        hidden_size, intermediate_size: widths.
        approximate: "tanh" (`gelu_pytorch_tanh`) or "none" (`gelu`).
        bias: whether the three projections have one.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        approximate: str = "tanh",
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.approximate = approximate
        self.gate_proj = torch.nn.Linear(hidden_size, intermediate_size, bias=bias, device=device, dtype=dtype)
        self.up_proj = torch.nn.Linear(hidden_size, intermediate_size, bias=bias, device=device, dtype=dtype)
        self.down_proj = torch.nn.Linear(intermediate_size, hidden_size, bias=bias, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(geglu(self.gate_proj(x), self.up_proj(x), approximate=self.approximate))
