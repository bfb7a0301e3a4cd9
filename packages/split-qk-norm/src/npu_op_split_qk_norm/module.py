"""The operator built from a model's own two norms."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_width
from npu_op_runtime.norms import norm_parameters

from .op import fused_split_qk_norm


class SplitQKNorm(torch.nn.Module):
    """`fused_split_qk_norm` with weights, biases and eps of two norm modules, which it shares and does not copy.

    Args:
        q_norm, kv_norm: any RMSNorm of one weight: `weight`, perhaps `bias`, and `variance_epsilon` (transformers, SGLang, vLLM)
            or `eps` (torch.nn.RMSNorm).
        qk_rope_dim: columns behind the two parts.

    Raises:
        TypeError: a norm without a weight or an eps, by name.
    """

    def __init__(self, q_norm: torch.nn.Module, kv_norm: torch.nn.Module, qk_rope_dim: int) -> None:
        super().__init__()
        require_width("qk_rope_dim", qk_rope_dim, least=0)
        norm_parameters("q_norm", q_norm)
        norm_parameters("kv_norm", kv_norm)
        self.q_norm = q_norm
        self.kv_norm = kv_norm
        self.qk_rope_dim = qk_rope_dim

    def forward(self, fused_qkv_a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q_weight, q_bias, q_eps = norm_parameters("q_norm", self.q_norm)
        kv_weight, kv_bias, kv_eps = norm_parameters("kv_norm", self.kv_norm)
        return fused_split_qk_norm(
            fused_qkv_a, q_weight, kv_weight, q_lora_rank=q_weight.shape[0], kv_lora_rank=kv_weight.shape[0],
            qk_rope_dim=self.qk_rope_dim, q_eps=q_eps, kv_eps=kv_eps, q_bias=q_bias, kv_bias=kv_bias,
        )  # fmt: skip
