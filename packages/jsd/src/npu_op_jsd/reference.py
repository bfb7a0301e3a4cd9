"""Generalised Jensen-Shannon divergence in plain PyTorch, on any device: the eager implementation and the oracle's fp64 gold."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype

# A log-probability below this is none: its exp is 0 in fp32 and less than 1e-86 in fp64. Finite, so that differences are.
LOWEST = -200.0
# exp of it is finite in fp32; where p is that much larger than q, log(p / m) is log(1 / beta) to the last digit.
FARTHEST = 80.0


def jsd_reference(
    log_q: torch.Tensor,
    log_p: torch.Tensor,
    *,
    beta: float = 0.5,
    shift_labels: torch.Tensor | None = None,
    ignore_index: int = -100,
) -> torch.Tensor:
    """beta * KL(P || M) + (1 - beta) * KL(Q || M) with M = beta * P + (1 - beta) * Q, in fp32, over the number of rows that count.

    beta 0 is KL(P || Q) and 1 is KL(Q || P), the limits of that over beta * (1 - beta); without a row that counts it is 0.
    """
    dtype = torch.promote_types(log_q.dtype, log_p.dtype)
    q, p = (log.to(compute_dtype(dtype)) for log in (log_q, log_p))
    rows: int | torch.Tensor = max(log_q.shape[:-1].numel(), 1)
    if shift_labels is not None:
        ignored = shift_labels == ignore_index
        q, p = (log.masked_fill(ignored.unsqueeze(-1), 0.0) for log in (q, p))
        rows = (~ignored).sum().clamp(min=1)
    if beta == 0:
        loss = _terms(p, q)
    elif beta == 1:
        loss = _terms(q, p)
    else:
        q, p = q.clamp(min=LOWEST), p.clamp(min=LOWEST)
        # log(p / q) and log(m / q): log(m) itself would be rounded at its size, about log(V), and the difference is small.
        ratio = (p - q).clamp(max=FARTHEST)
        mixture = (beta * ratio.exp() + (1 - beta)).log()
        loss = beta * (p.exp() * (ratio - mixture)) - (1 - beta) * (q.exp() * mixture)
    return (loss.sum() / rows).to(dtype)


def _terms(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    """a * log(a / b), whose sum is KL(A || B); 0 where a is 0."""
    a = log_a.exp()
    return a * torch.where(a == 0, 0.0, log_a - log_b)
