"""RMSNorm in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> torch.Tensor:
    """y = x / sqrt(mean(x^2) + eps) * (offset + weight) over the last dimension; shape and dtype of x.

    casting "llama" is transformers' LlamaRMSNorm (normalise in fp32, cast to x.dtype, multiply), "gemma" its GemmaRMSNorm
    (fp32 until one last cast), "none" computes in x.dtype throughout. A weight of another dtype is promoted as PyTorch does.
    """
    work = x if casting == "none" else x.to(compute_dtype(x.dtype))
    y = work * torch.rsqrt(work.pow(2).mean(-1, keepdim=True) + eps)
    if casting == "llama":
        y = y.to(x.dtype)
    if weight is not None:
        weight = weight.to(work.dtype) if casting == "gemma" else weight
        y = y * (weight + offset if offset else weight)
    return y.to(x.dtype)
