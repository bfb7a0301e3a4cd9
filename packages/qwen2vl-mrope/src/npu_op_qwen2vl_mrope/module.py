"""The rotation as a module, for places that a model fills with one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npu_op_runtime.checks import require_choice

from .op import apply_multimodal_rotary, checked_sections


class MultimodalRotary(torch.nn.Module):
    """`apply_multimodal_rotary` with its sections fixed; no parameters and no state: cos and sin come with every call.

    Args:
        mrope_section, unsqueeze_dim, inplace: as in `apply_multimodal_rotary`.

    Raises:
        TypeError, ValueError: one of them is of the wrong type or value.
    """

    def __init__(self, mrope_section: Sequence[int], unsqueeze_dim: int = 1, *, inplace: bool = False) -> None:
        super().__init__()
        require_choice("unsqueeze_dim", unsqueeze_dim, (1, 2))
        self.mrope_section = checked_sections(mrope_section)
        self.unsqueeze_dim = unsqueeze_dim
        self.inplace = inplace

    def forward(
        self, q: torch.Tensor, k: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return apply_multimodal_rotary(q, k, cos, sin, self.mrope_section, self.unsqueeze_dim, inplace=self.inplace)
