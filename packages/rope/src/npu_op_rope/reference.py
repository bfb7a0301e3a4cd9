"""Rotary position embeddings in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch


def apply_rotary_reference(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q * cos + turn(q) * sin, and the same for k, as transformers' apply_rotary_pos_emb of Llama (half) and Cohere (interleaved).

    turn(x) is (-x2, x1) of the halves, or of the even and odd columns; columns beyond those of cos pass through, as in GPT-NeoX.
    """
    if cos.dim() == 2:
        cos, sin = cos.unsqueeze(0), sin.unsqueeze(0)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def one(x: torch.Tensor) -> torch.Tensor:
        if cos.shape[-1] == x.shape[-1]:
            return rotated(x, cos, sin, interleaved)
        turned, rest = x.tensor_split([cos.shape[-1]], dim=-1)
        return torch.cat((rotated(turned, cos, sin, interleaved), rest), dim=-1)

    return one(q), None if k is None else one(k)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x * cos + turn(x) * sin in the dtype of x."""
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)
