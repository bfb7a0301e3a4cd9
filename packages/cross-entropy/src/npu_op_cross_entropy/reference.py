"""Cross-entropy in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from npu_op_runtime.dtypes import compute_dtype


class CrossEntropyOutput(NamedTuple):
    """What `cross_entropy` returns when more than the loss is asked for; None where not asked for.

    Attributes:
        loss: fp32, differentiable; () or, with reduction "none", the shape of target. Contains z_loss.
        z_loss: the part of the loss that lse_square_scale adds, fp32, not differentiable.
        token_accuracy: share of the kept rows whose highest logit is the target's, fp32 (); with reduction "none" 1 or 0 for each row.
        predicted_tokens: index of the highest logit (the lowest of equals), int64, the shape of target; -1 for ignored rows.
    """

    # Optional, not `| None`: torch evaluates the annotations of a named tuple under Python 3.9 too.
    loss: torch.Tensor
    z_loss: Optional[torch.Tensor] = None  # noqa: UP045
    token_accuracy: Optional[torch.Tensor] = None  # noqa: UP045
    predicted_tokens: Optional[torch.Tensor] = None  # noqa: UP045


def cross_entropy_reference(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    inplace: bool = False,
) -> torch.Tensor | CrossEntropyOutput:
    """torch.nn.functional.cross_entropy on logits in fp32 (fp64 for fp64), with PaLM's z-loss and Gemma 2's soft cap.

    Where no row is kept, the mean is 0 and has a gradient of zero; torch's is NaN. `inplace` is taken, and nothing is overwritten.
    """
    z = logits.to(compute_dtype(logits.dtype))
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    rows, labels = z.reshape(-1, z.shape[-1]), target.reshape(-1).long()
    kept = labels != ignore_index
    weight = None if weight is None else weight.to(z.dtype)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if reduction == "mean" and label_smoothing == 0.0:
        loss = torch.nn.functional.cross_entropy(rows, labels, weight, **options).masked_fill(~kept.any(), 0.0)
    elif reduction == "mean":
        total = kept.sum() if weight is None else weight[labels.where(kept, 0)].where(kept, 0.0).sum()
        summed = torch.nn.functional.cross_entropy(rows, labels, weight, reduction="sum", **options)
        loss = summed / total.masked_fill(total == 0, 1)
    else:
        loss = torch.nn.functional.cross_entropy(rows, labels, weight, reduction=reduction, **options)
    if reduction == "none":
        loss = loss.reshape(target.shape)
    count = kept.sum().clamp(min=1)
    z_loss = accuracy = predicted = None
    if lse_square_scale != 0.0 or return_z_loss:
        z_rows = (lse_square_scale * torch.logsumexp(rows, -1).square()).masked_fill(~kept, 0.0)
        z_loss = _reduced(z_rows, reduction, target, count)
        loss = loss + z_loss
    if not (return_z_loss or return_token_accuracy or return_predicted_tokens):
        return loss
    if return_token_accuracy or return_predicted_tokens:
        predicted = logits.detach().argmax(-1).masked_fill(target == ignore_index, -1)
        correct = (predicted == target).logical_and(target != ignore_index).to(z.dtype)
        accuracy = correct if reduction == "none" else correct.sum() / count
    return CrossEntropyOutput(
        loss,
        z_loss.detach() if z_loss is not None and return_z_loss else None,
        accuracy if return_token_accuracy else None,
        predicted if return_predicted_tokens else None,
    )


def _reduced(rows: torch.Tensor, reduction: str, target: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    if reduction == "none":
        return rows.reshape(target.shape)
    return rows.sum() / count if reduction == "mean" else rows.sum()
