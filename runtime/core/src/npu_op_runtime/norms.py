"""What a model's norm module holds, whoever wrote it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class NormParameters(NamedTuple):
    """Weight, bias (None where the module has none) and eps of a norm."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float


def norm_parameters(argument: str, norm: torch.nn.Module) -> NormParameters:
    """Reads `weight`, `bias` if there is one, and `variance_epsilon` (transformers, SGLang, vLLM) or `eps` (PyTorch) of an RMSNorm.

    Raises:
        TypeError: a LayerNorm, no weight of one dimension, or no float eps; names the argument.
    """
    if isinstance(norm, torch.nn.LayerNorm):
        raise TypeError(f"{argument} must be an RMSNorm, which subtracts no mean (got {norm})")
    held: Any = norm
    weight = getattr(held, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        raise TypeError(f"{argument} must have a weight of one dimension (got {norm})")
    for name in ("variance_epsilon", "eps"):
        eps = getattr(held, name, None)
        if isinstance(eps, float):
            return NormParameters(weight, getattr(held, "bias", None), eps)
    raise TypeError(f"{argument} must have a float variance_epsilon or eps (got {norm})")
