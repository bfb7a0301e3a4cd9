"""The rotation in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch


def rope_qk_mqa_reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool, rotary_dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns the pairs of the first `rotary_dim` columns of q and k by one angle each; the columns behind them pass through."""
    return _rotated(q, cos, sin, interleaved, rotary_dim), _rotated(k, cos, sin, interleaved, rotary_dim)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, rotary_dim: int | None) -> torch.Tensor:
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = x[..., :rotary_dim]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pairs = (a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype)
    joined = torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)
    return joined if joined.shape == x.shape else torch.cat((joined, x[..., rotary_dim:]), dim=-1)
