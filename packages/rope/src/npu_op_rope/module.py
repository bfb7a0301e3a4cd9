"""The rotation as a module, for places that a model fills with one."""

from __future__ import annotations

import torch

from .op import apply_rotary


class Rotary(torch.nn.Module):
    """`apply_rotary` with its layout fixed; no parameters and no state: cos and sin come with every call.

    Args:
        interleaved, unsqueeze_dim, inplace: as in `apply_rotary`.
    """

    def __init__(self, *, interleaved: bool = False, unsqueeze_dim: int = 1, inplace: bool = False) -> None:
        super().__init__()
        self.interleaved = interleaved
        self.unsqueeze_dim = unsqueeze_dim
        self.inplace = inplace

    def forward(
        self, q: torch.Tensor, k: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return apply_rotary(q, k, cos, sin, interleaved=self.interleaved, unsqueeze_dim=self.unsqueeze_dim, inplace=self.inplace)
