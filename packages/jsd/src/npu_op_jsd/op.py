"""The registered ops of the generalised Jensen-Shannon divergence, its autograd Function and the public function."""

from __future__ import annotations

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_number
from npu_op_runtime.device import target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.divergence import kept_scale, launch_divergence, require_distributions, require_labels, sum_loss
from npu_op_runtime.loss_gradient import times_incoming
from npu_op_runtime.registration import reference_gradients, register_composite, register_op

from .reference import jsd_reference

_KERNELS = "npu_op_jsd.kernel"


def jsd(
    log_q: torch.Tensor,
    log_p: torch.Tensor,
    *,
    beta: float = 0.5,
    shift_labels: torch.Tensor | None = None,
    ignore_index: int = -100,
    implementation: str | None = None,
) -> torch.Tensor:
    """beta * KL(P || M) + (1 - beta) * KL(Q || M) with M = beta * P + (1 - beta) * Q, over the number of rows; in fp32, rounded once.

    Args:
        log_q, log_p: log-probabilities (..., V) of one shape and device, of the model and of its teacher, each fp16, bf16 or fp32, any
            layout whose last dimension is contiguous. -inf is a probability of 0.
        beta: the weight of P in M, 0 to 1. 0 is KL(P || Q), forward; 1 is KL(Q || P), reverse.
        shift_labels: int64 or int32, (...): rows whose label is `ignore_index` have no loss and no gradient and do not count.
        ignore_index: that label; 32 bits.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        The loss, 0-d, in the dtype that PyTorch promotes log_q and log_p to; 0 without a row that counts. Differentiable in both.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_distributions(log_q=log_q, log_p=log_p)
    require_beta(beta)
    require_labels(shift_labels, ignore_index, log_q)
    chosen = choose(log_q, implementation)
    if chosen == "eager":
        return jsd_reference(log_q, log_p, beta=beta, shift_labels=shift_labels, ignore_index=ignore_index)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no Jensen-Shannon divergence; use 'eager'")
    return jsd_differentiable(log_q, log_p, shift_labels, beta, ignore_index)


def require_beta(beta: float) -> None:
    """beta is a number of [0, 1]; raises by name otherwise."""
    require_number("beta", beta)
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be between 0 and 1 (got {beta})")


def _differentiable(
    log_q: torch.Tensor, log_p: torch.Tensor, shift_labels: torch.Tensor | None, beta: float, ignore_index: int
) -> torch.Tensor:
    if tracked(log_q, log_p):
        return _JSD.apply(log_q, log_p, shift_labels, beta, ignore_index, log_q.requires_grad, log_p.requires_grad)
    return jsd_forward(log_q, log_p, shift_labels, beta, ignore_index, False, False)[0]


class _JSD(torch.autograd.Function):
    """The gradient is the incoming number times what forward can write in the same pass."""

    @staticmethod
    def forward(ctx, log_q, log_p, shift_labels, beta, ignore_index, need_dq, need_dp):
        loss, dq, dp = jsd_forward(log_q, log_p, shift_labels, beta, ignore_index, need_dq, need_dp)
        ctx.save_for_backward(dq if need_dq else None, dp if need_dp else None)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        return *times_incoming(ctx.saved_tensors, dloss), None, None, None, None, None


def _forward_kernel(
    log_q: torch.Tensor,
    log_p: torch.Tensor,
    shift_labels: torch.Tensor | None,
    beta: float,
    ignore_index: int,
    need_dq: bool,
    need_dp: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    loss, dq, dp = _forward_fake(log_q, log_p, shift_labels, beta, ignore_index, need_dq, need_dp)
    if log_q.numel() == 0:
        return loss.zero_(), dq, dp
    read, wanted, needs = (log_q, log_p), (dq if need_dq else None, dp if need_dp else None), (need_dq, need_dp)
    if beta == 1:  # KL(Q || P): the other way round
        read, wanted, needs = read[::-1], wanted[::-1], needs[::-1]
    partials = launch_divergence(
        _KERNELS, "jsd", read, wanted, shift_labels,
        (None if shift_labels is None else kept_scale(shift_labels, ignore_index, 1),),
        (1 / log_q.shape[:-1].numel(), beta, 1 - beta, ignore_index),
        work=4, reduced=True, cuda_warps=8,
        HAS_LABELS=shift_labels is not None, MIXED=0 < beta < 1, NEED_DQ=needs[0], NEED_DP=needs[1],
        CUDA=target_of(log_q).backend == "cuda",
    )  # fmt: skip
    assert partials is not None
    return sum_loss(partials, loss.dtype), dq, dp


def _forward_reference(log_q, log_p, shift_labels, beta, ignore_index, need_dq, need_dp):
    outputs = _forward_fake(log_q, log_p, shift_labels, beta, ignore_index, need_dq, need_dp)

    def formula(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
        return jsd_reference(log_q, log_p, beta=beta, shift_labels=shift_labels, ignore_index=ignore_index)

    loss = outputs[0].copy_(formula(log_q, log_p))
    if need_dq or need_dp:
        gradients = reference_gradients(formula, (log_q, log_p), torch.ones_like(loss), (need_dq, need_dp))
        for out, gradient in zip(outputs[1:], gradients):
            if gradient is not None:
                out.copy_(gradient)
    return outputs


def _forward_fake(log_q, log_p, shift_labels, beta, ignore_index, need_dq, need_dp):
    return (
        log_q.new_empty((), dtype=torch.promote_types(log_q.dtype, log_p.dtype)),
        torch.empty_like(log_q) if need_dq else log_q.new_empty(0),
        torch.empty_like(log_p) if need_dp else log_p.new_empty(0),
    )


jsd_forward = register_op(
    "npu_op_jsd",
    "forward(Tensor log_q, Tensor log_p, Tensor? shift_labels, float beta, int ignore_index, bool need_dq, bool need_dp)"
    " -> (Tensor loss, Tensor dq, Tensor dp)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
jsd_differentiable = register_composite(
    "npu_op_jsd",
    "jsd(Tensor log_q, Tensor log_p, Tensor? shift_labels, Scalar beta, int ignore_index) -> Tensor",
    _differentiable,
)
