"""Drop-in module: torch.nn.KLDivLoss with the fused kernel."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_choice
from npu_op_runtime.divergence import REDUCTIONS

from .op import kl_div


class KLDivLoss(torch.nn.KLDivLoss):
    """torch.nn.KLDivLoss, whose reduction is "batchmean" unless another is named: the mean that the divergence is defined with.

    Args:
        reduction: "batchmean", "mean", "sum" or "none".
        log_target: whether targets are log-probabilities.

    Raises:
        ValueError: another reduction.
    """

    def __init__(self, reduction: str = "batchmean", log_target: bool = False) -> None:
        require_choice("reduction", reduction, REDUCTIONS)
        super().__init__(reduction=reduction, log_target=log_target)

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return kl_div(input, target, self.reduction, self.log_target)
