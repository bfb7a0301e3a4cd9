"""GroupNorm in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype


def group_norm_reference(
    x: torch.Tensor, num_groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """torch.nn.functional.group_norm of (N, C, *); parameters of another dtype meet x in fp32, rounded once to x.dtype."""
    if all(parameter is None or parameter.dtype == x.dtype for parameter in (weight, bias)) and (weight is not None or bias is None):
        return torch.nn.functional.group_norm(x, num_groups, weight, bias, eps)
    wide = compute_dtype(x.dtype)
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)  # PyTorch's own backward raises for a bias alone
    weight, bias = (None if parameter is None else parameter.to(wide) for parameter in (weight, bias))
    return torch.nn.functional.group_norm(x.to(wide), num_groups, weight, bias, eps).to(x.dtype)
