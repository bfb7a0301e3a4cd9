"""The rotation as a module, for places that a model fills with one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .op import apply_multimodal_rotary


class MultimodalRotary(torch.nn.Module):
    """`apply_multimodal_rotary` with its sections fixed; no parameters and no state: cos and sin come with every call.

    Args:
        mrope_section, unsqueeze_dim: as in `apply_multimodal_rotary`.
    """

    def __init__(self, mrope_section: Sequence[int], unsqueeze_dim: int = 1) -> None:
        super().__init__()
        self.mrope_section = tuple(mrope_section)
        self.unsqueeze_dim = unsqueeze_dim

    def forward(
        self, q: torch.Tensor, k: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return apply_multimodal_rotary(q, k, cos, sin, self.mrope_section, self.unsqueeze_dim)
