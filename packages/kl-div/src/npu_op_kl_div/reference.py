"""KL divergence in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

# The enumeration that torch.kl_div takes; "batchmean" is a sum that is divided afterwards.
_ATEN = {"none": 0, "mean": 1, "sum": 2, "batchmean": 2}


def kl_div_reference(input: torch.Tensor, target: torch.Tensor, reduction: str = "batchmean", log_target: bool = False) -> torch.Tensor:
    """torch.nn.functional.kl_div: target * (log(target) - input), or exp(target) * (target - input), and the reduction.

    It differs in two points: "mean" does not warn, and a target of 0 has the gradient 0, where torch.nn.functional.kl_div has NaN.
    """
    if target.requires_grad and not log_target:
        target = torch.where(target == 0, target.detach(), target)
    loss = torch.kl_div(input, target, _ATEN[reduction], log_target=log_target)
    return loss / input.shape[0] if reduction == "batchmean" else loss
