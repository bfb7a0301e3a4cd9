"""The rotation as a module, for places that a model fills with one."""

from __future__ import annotations

import torch

from .op import fused_rope_qk_mqa


class RopeQKMQA(torch.nn.Module):
    """`fused_rope_qk_mqa` with its layout fixed; no parameters and no state: cos and sin come with every call.

    Args:
        interleaved, rotary_dim, inplace: as in `fused_rope_qk_mqa`.
    """

    def __init__(self, *, interleaved: bool, rotary_dim: int | None = None, inplace: bool = False) -> None:
        super().__init__()
        self.interleaved = interleaved
        self.rotary_dim = rotary_dim
        self.inplace = inplace

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return fused_rope_qk_mqa(q, k, cos, sin, interleaved=self.interleaved, rotary_dim=self.rotary_dim, inplace=self.inplace)
