"""The registered ops of the total variation distance, its autograd Functions and the public function."""

from __future__ import annotations

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice
from npu_op_runtime.dispatch import choose
from npu_op_runtime.divergence import REDUCTIONS, kept_scale, launch_divergence, require_distributions, require_labels, sum_loss
from npu_op_runtime.loss_gradient import times_incoming
from npu_op_runtime.registration import reference_gradients, register_op

from .reference import tvd_reference

_KERNELS = "npu_op_tvd.kernel"


def tvd(
    p: torch.Tensor,
    q: torch.Tensor,
    reduction: str = "batchmean",
    *,
    shift_labels: torch.Tensor | None = None,
    ignore_index: int = -100,
    implementation: str | None = None,
) -> torch.Tensor:
    """Total variation distance 0.5 * sum |p - q|, computed and added up in fp32 and rounded once.

    Args:
        p, q: probabilities (..., V) of one shape and device, each fp16, bf16 or fp32, any layout whose last dimension is contiguous.
        reduction: "batchmean" (the sum over the number of rows), "mean" (over all elements), "sum" or "none".
        shift_labels: int64 or int32, (...): rows whose label is `ignore_index` have no loss and no gradient and do not count in a mean.
        ignore_index: that label; 32 bits.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        The loss, 0-d, or for "none" of the shape of p, in the dtype that PyTorch promotes p and q to; 0 without a row that counts.
        Differentiable in p and q: the gradient is 0 where they are equal.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_distributions(p=p, q=q)
    require_choice("reduction", reduction, REDUCTIONS)
    require_labels(shift_labels, ignore_index, p)
    chosen = choose(p, implementation)
    if chosen == "eager":
        return tvd_reference(p, q, reduction, shift_labels=shift_labels, ignore_index=ignore_index)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no total variation distance; use 'eager'")
    if not tracked(p, q):
        return tvd_forward(p, q, shift_labels, reduction, ignore_index, False, False)[0]
    if reduction == "none":
        return _ElementsTVD.apply(p, q, shift_labels, ignore_index)
    return _TVD.apply(p, q, shift_labels, reduction, ignore_index, p.requires_grad, q.requires_grad)


class _TVD(torch.autograd.Function):
    """A reduced loss: the gradient is the incoming number times what forward can write in the same pass."""

    @staticmethod
    def forward(ctx, p, q, shift_labels, reduction, ignore_index, need_dp, need_dq):
        loss, dp, dq = tvd_forward(p, q, shift_labels, reduction, ignore_index, need_dp, need_dq)
        ctx.save_for_backward(dp if need_dp else None, dq if need_dq else None)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        return *times_incoming(ctx.saved_tensors, dloss), None, None, None, None, None


class _ElementsTVD(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, q, shift_labels, ignore_index):
        ctx.save_for_backward(p, q, shift_labels)
        ctx.ignore_index = ignore_index
        return tvd_forward(p, q, shift_labels, "none", ignore_index, False, False)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        need_dp, need_dq = ctx.needs_input_grad[:2]
        dp, dq = tvd_backward(dloss, *ctx.saved_tensors, ctx.ignore_index, need_dp, need_dq)
        return dp if need_dp else None, dq if need_dq else None, None, None


def _forward_kernel(
    p: torch.Tensor, q: torch.Tensor, shift_labels: torch.Tensor | None, reduction: str, ignore_index: int, need_dp: bool, need_dq: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    loss, dp, dq = _forward_fake(p, q, shift_labels, reduction, ignore_index, need_dp, need_dq)
    if p.numel() == 0:
        return (loss if reduction == "none" else loss.zero_()), dp, dq
    columns = p.shape[-1] if reduction == "mean" else 1
    mean = reduction in ("mean", "batchmean")
    partials = launch_divergence(
        _KERNELS, "tvd", (p, q, None), (loss if reduction == "none" else None, dp if need_dp else None, dq if need_dq else None),
        shift_labels,
        (kept_scale(shift_labels, ignore_index, columns) if mean and shift_labels is not None else None,),
        (1 / (p.shape[:-1].numel() * columns) if mean else 1.0, ignore_index),
        work=4, reduced=reduction != "none", HAS_LABELS=shift_labels is not None, REDUCED=reduction != "none",
        ELEMENTS=reduction == "none", INCOMING=False, NEED_DP=need_dp, NEED_DQ=need_dq,
    )  # fmt: skip
    return loss if partials is None else sum_loss(partials, loss.dtype), dp, dq


def _forward_reference(p, q, shift_labels, reduction, ignore_index, need_dp, need_dq):
    outputs = _forward_fake(p, q, shift_labels, reduction, ignore_index, need_dp, need_dq)

    def formula(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return tvd_reference(p, q, reduction, shift_labels=shift_labels, ignore_index=ignore_index)

    loss = outputs[0].copy_(formula(p, q))
    if need_dp or need_dq:
        gradients = reference_gradients(formula, (p, q), torch.ones_like(loss), (need_dp, need_dq))
        for out, gradient in zip(outputs[1:], gradients):
            if gradient is not None:
                out.copy_(gradient)
    return outputs


def _forward_fake(p, q, shift_labels, reduction, ignore_index, need_dp, need_dq):
    dtype = torch.promote_types(p.dtype, q.dtype)
    return (
        torch.empty_like(p, dtype=dtype) if reduction == "none" else p.new_empty((), dtype=dtype),
        torch.empty_like(p) if need_dp else p.new_empty(0),
        torch.empty_like(q) if need_dq else q.new_empty(0),
    )


def _backward_kernel(
    dloss: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor,
    shift_labels: torch.Tensor | None,
    ignore_index: int,
    need_dp: bool,
    need_dq: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    dp, dq = _backward_fake(dloss, p, q, shift_labels, ignore_index, need_dp, need_dq)
    if p.numel() > 0:
        launch_divergence(
            _KERNELS, "tvd", (p, q, dloss), (None, dp if need_dp else None, dq if need_dq else None), shift_labels,
            (None,), (1.0, ignore_index),
            work=4, reduced=False, HAS_LABELS=shift_labels is not None, REDUCED=False, ELEMENTS=False, INCOMING=True,
            NEED_DP=need_dp, NEED_DQ=need_dq,
        )  # fmt: skip
    return dp, dq


def _backward_reference(dloss, p, q, shift_labels, ignore_index, need_dp, need_dq):
    outputs = _backward_fake(dloss, p, q, shift_labels, ignore_index, need_dp, need_dq)

    def formula(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return tvd_reference(p, q, "none", shift_labels=shift_labels, ignore_index=ignore_index)

    for out, gradient in zip(outputs, reference_gradients(formula, (p, q), dloss, (need_dp, need_dq))):
        if gradient is not None:
            out.copy_(gradient)
    return outputs


def _backward_fake(dloss, p, q, shift_labels, ignore_index, need_dp, need_dq):
    return torch.empty_like(p) if need_dp else p.new_empty(0), torch.empty_like(q) if need_dq else q.new_empty(0)


tvd_forward = register_op(
    "npu_op_tvd",
    "forward(Tensor p, Tensor q, Tensor? shift_labels, str reduction, int ignore_index, bool need_dp, bool need_dq)"
    " -> (Tensor loss, Tensor dp, Tensor dq)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
tvd_backward = register_op(
    "npu_op_tvd",
    "backward(Tensor dloss, Tensor p, Tensor q, Tensor? shift_labels, int ignore_index, bool need_dp, bool need_dq)"
    " -> (Tensor dp, Tensor dq)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
