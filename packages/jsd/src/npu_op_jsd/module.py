"""Module: the generalised Jensen-Shannon divergence as a loss."""

from __future__ import annotations

import torch

from .op import jsd, require_beta


class JSDLoss(torch.nn.Module):
    """Generalised Jensen-Shannon divergence of two distributions, see `jsd`.

    Args:
        beta: the weight of P in the mixture, 0 to 1.
        ignore_index: the label of rows that do not count.

    Raises:
        TypeError, ValueError: beta is no number, or out of range.
    """

    def __init__(self, beta: float = 0.5, ignore_index: int = -100) -> None:
        require_beta(beta)
        super().__init__()
        self.beta = beta
        self.ignore_index = ignore_index

    def forward(self, log_q: torch.Tensor, log_p: torch.Tensor, shift_labels: torch.Tensor | None = None) -> torch.Tensor:
        return jsd(log_q, log_p, beta=self.beta, shift_labels=shift_labels, ignore_index=self.ignore_index)
