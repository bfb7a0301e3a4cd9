"""Split and RMSNorm in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype


def split_qk_norm_reference(
    fused_qkv_a: torch.Tensor,
    q_weight: torch.Tensor,
    kv_weight: torch.Tensor,
    *,
    q_lora_rank: int,
    kv_lora_rank: int,
    qk_rope_dim: int,
    q_eps: float,
    kv_eps: float,
    q_bias: torch.Tensor | None = None,
    kv_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """torch.split, and transformers' DeepseekV3RMSNorm of the first two parts; a bias is added after the weight."""
    q, kv, k_pe = fused_qkv_a.split((q_lora_rank, kv_lora_rank, qk_rope_dim), dim=-1)
    return _norm(q, q_weight, q_bias, q_eps), _norm(kv, kv_weight, kv_bias, kv_eps).unsqueeze(1), k_pe.unsqueeze(1).clone()


def _norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    work = x.to(compute_dtype(x.dtype))
    y = weight * (work * torch.rsqrt(work.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return (y if bias is None else y + bias).to(x.dtype)
