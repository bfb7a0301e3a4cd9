"""Llama 4's rotary position embeddings in plain PyTorch: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype


def apply_llama4_rotary_reference(
    q: torch.Tensor, k: torch.Tensor | None, freqs_cis: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Pairs of neighbouring columns as complex numbers, times freqs_cis, in fp32, as transformers' apply_rotary_emb of Llama 4."""
    if not freqs_cis.is_complex():
        freqs_cis = torch.view_as_complex(freqs_cis.to(compute_dtype(q.dtype)).unflatten(-1, (freqs_cis.shape[-1] // 2, 2)).contiguous())
    if freqs_cis.dim() == 2:
        freqs_cis = freqs_cis.unsqueeze(0)
    turn = freqs_cis.unsqueeze(2)

    def one(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.to(compute_dtype(x.dtype)).reshape(*x.shape[:-1], x.shape[-1] // 2, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(3).to(x.dtype)

    return one(q), None if k is None else one(k)
