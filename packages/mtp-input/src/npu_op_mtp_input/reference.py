"""The input of multi-token prediction in plain PyTorch, on any device: the eager implementation and the oracle's formula."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype

from .rotation import unrotated


def mtp_input_reference(
    embedding: torch.Tensor,
    hidden: torch.Tensor,
    enorm_weight: torch.Tensor,
    hnorm_weight: torch.Tensor,
    *,
    enorm_eps: float,
    hnorm_eps: float,
    rotation: torch.Tensor | None = None,
    convention: str | None = None,
) -> torch.Tensor:
    """cat(enorm(embedding), hnorm(un-rotated hidden)), the norms as transformers' DeepseekV3RMSNorm."""
    hidden = unrotated(hidden, rotation, convention)
    return torch.cat((_norm(embedding, enorm_weight, enorm_eps), _norm(hidden, hnorm_weight, hnorm_eps)), dim=-1)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    work = x.to(compute_dtype(x.dtype))
    return (weight * (work * torch.rsqrt(work.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)).to(x.dtype)
