"""Qwen2-VL's multimodal rotary embeddings in plain PyTorch: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def apply_multimodal_rotary_reference(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mrope_section: Sequence[int],
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q * cos + turn(q) * sin with the columns of cos and sin taken from three axes, as transformers' apply_multimodal_rotary_pos_emb.

    Columns 0 to t - 1 of each half come from the temporal axis, the next h from height, the last w from width.
    """
    sections = [*mrope_section] * 2
    cos, sin = (
        torch.cat([axes[i % 3] for i, axes in enumerate(angle.split(sections, dim=-1))], dim=-1).unsqueeze(unsqueeze_dim)
        for angle in (cos, sin)
    )

    def one(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)

    return one(q), None if k is None else one(k)
