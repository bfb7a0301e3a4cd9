"""The rotation as a module, for places that a model fills with one."""

from __future__ import annotations

import torch

from .op import apply_llama4_rotary


class Llama4Rotary(torch.nn.Module):
    """`apply_llama4_rotary`; no parameters and no state: the frequencies come with every call.

    Args:
        inplace: as in `apply_llama4_rotary`.
    """

    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, q: torch.Tensor, k: torch.Tensor | None, freqs_cis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return apply_llama4_rotary(q, k, freqs_cis, inplace=self.inplace)
