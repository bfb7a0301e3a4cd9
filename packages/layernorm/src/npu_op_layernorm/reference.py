"""LayerNorm in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype


def layer_norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """torch.nn.functional.layer_norm over the last dimension; parameters of another dtype meet x in fp32, rounded once to x.dtype."""
    if all(parameter is None or parameter.dtype == x.dtype for parameter in (weight, bias)):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    wide = compute_dtype(x.dtype)
    weight, bias = (None if parameter is None else parameter.to(wide) for parameter in (weight, bias))
    return torch.nn.functional.layer_norm(x.to(wide), x.shape[-1:], weight, bias, eps).to(x.dtype)
