"""Total variation distance in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch


def tvd_reference(
    p: torch.Tensor,
    q: torch.Tensor,
    reduction: str = "batchmean",
    *,
    shift_labels: torch.Tensor | None = None,
    ignore_index: int = -100,
) -> torch.Tensor:
    """0.5 * |p - q|, 0 in the rows whose label is `ignore_index`, reduced; without a row that is kept a mean is 0."""
    loss = 0.5 * (p - q).abs()
    rows: int | torch.Tensor = max(p.shape[:-1].numel(), 1)
    if shift_labels is not None:
        kept = shift_labels != ignore_index
        loss = loss.masked_fill(~kept.unsqueeze(-1), 0.0)
        rows = kept.sum().clamp(min=1)
    if reduction == "none":
        return loss
    return loss.sum() / {"sum": 1, "mean": rows * p.shape[-1], "batchmean": rows}[reduction]
