"""The gather in plain PyTorch, on any device: the eager implementation and the oracle's formula."""

from __future__ import annotations

import torch


def gather_cos_sin_reference(cache: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The halves of the cache's rows at the positions, each clamped to the rows that there are."""
    cos, sin = cache.index_select(0, positions.clamp(0, cache.shape[0] - 1)).chunk(2, dim=-1)
    return cos, sin
