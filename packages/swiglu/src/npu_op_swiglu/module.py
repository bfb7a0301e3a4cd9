"""The gated MLP of Llama with the fused activation."""

from __future__ import annotations

import torch

from .op import swiglu


class SwiGLUMLP(torch.nn.Module):
    """down_proj(silu(gate_multiplier * gate_proj(x)) * up_proj(x)) * down_multiplier, with the parameter names of transformers' LlamaMLP.

    Args:
        hidden_size, intermediate_size: widths.
        bias: whether the three projections have one.
        gate_multiplier, down_multiplier: as in `swiglu`; 1.0 in Llama. The down multiplier is applied before down_proj,
            whose bias it does not scale.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        gate_multiplier: float = 1.0,
        down_multiplier: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate_multiplier = gate_multiplier
        self.down_multiplier = down_multiplier
        self.gate_proj = torch.nn.Linear(hidden_size, intermediate_size, bias=bias, device=device, dtype=dtype)
        self.up_proj = torch.nn.Linear(hidden_size, intermediate_size, bias=bias, device=device, dtype=dtype)
        self.down_proj = torch.nn.Linear(intermediate_size, hidden_size, bias=bias, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(swiglu(gate, up, gate_multiplier=self.gate_multiplier, down_multiplier=self.down_multiplier))
