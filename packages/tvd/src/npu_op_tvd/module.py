"""Module: the total variation distance as a loss."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_choice
from npu_op_runtime.divergence import REDUCTIONS

from .op import tvd


class TVDLoss(torch.nn.Module):
    """Total variation distance of two distributions, see `tvd`.

    Args:
        reduction: "batchmean", "mean", "sum" or "none".
        ignore_index: the label of rows that do not count.

    Raises:
        ValueError: another reduction.
    """

    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100) -> None:
        require_choice("reduction", reduction, REDUCTIONS)
        super().__init__()
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(self, p: torch.Tensor, q: torch.Tensor, shift_labels: torch.Tensor | None = None) -> torch.Tensor:
        return tvd(p, q, self.reduction, shift_labels=shift_labels, ignore_index=self.ignore_index)
