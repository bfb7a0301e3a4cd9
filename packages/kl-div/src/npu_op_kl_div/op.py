"""The registered ops of the KL divergence, its autograd Function and the public function."""

from __future__ import annotations

import math

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice
from npu_op_runtime.dispatch import choose
from npu_op_runtime.divergence import REDUCTIONS, launch_divergence, require_distributions, sum_loss
from npu_op_runtime.registration import reference_gradients, register_op

from .reference import kl_div_reference

_KERNELS = "npu_op_kl_div.kernel"


def kl_div(
    input: torch.Tensor,
    target: torch.Tensor,
    reduction: str = "batchmean",
    log_target: bool = False,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """target * (log(target) - input), computed and added up in fp32 and rounded once; 0 * log(0) is 0.

    Args:
        input: log-probabilities, at least one dimension, fp16, bf16 or fp32, any layout whose last dimension is contiguous.
        target: probabilities, of the shape and device of input; may have another of the dtypes.
        reduction: "batchmean" (the sum over the size of the first dimension), "mean" (over all elements), "sum" or "none".
        log_target: target holds log-probabilities.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        The loss, 0-d, or for "none" of the shape of input, in the dtype that PyTorch promotes the two to. Differentiable in input and
        target; a target of 0 has the gradient 0.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_distributions(input=input, target=target)
    require_choice("reduction", reduction, REDUCTIONS)
    if not isinstance(log_target, bool):
        raise TypeError(f"log_target must be a bool (got {type(log_target).__name__})")
    chosen = choose(input, implementation)
    if chosen == "eager":
        return kl_div_reference(input, target, reduction, log_target)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no KL divergence besides PyTorch's; use 'eager'")
    if tracked(input, target):
        return _KLDiv.apply(input, target, reduction, log_target)
    return kl_div_forward(input, target, reduction, log_target)


class _KLDiv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, target, reduction, log_target):
        ctx.save_for_backward(input, target)
        ctx.options = reduction, log_target
        return kl_div_forward(input, target, reduction, log_target)

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        need_dinput, need_dtarget = ctx.needs_input_grad[:2]
        dinput, dtarget = kl_div_backward(dloss, *ctx.saved_tensors, *ctx.options, need_dinput, need_dtarget)
        return dinput if need_dinput else None, dtarget if need_dtarget else None, None, None


def _divisor(shape: torch.Size, reduction: str) -> int:
    return {"mean": math.prod(shape), "batchmean": shape[0]}.get(reduction, 1)


def _forward_kernel(input: torch.Tensor, target: torch.Tensor, reduction: str, log_target: bool) -> torch.Tensor:
    loss = _forward_fake(input, target, reduction, log_target)
    reduced = reduction != "none"
    divisor = _divisor(input.shape, reduction)
    if input.numel() == 0:
        return loss.fill_(0.0 if divisor else math.nan) if reduced else loss
    partials = launch_divergence(
        _KERNELS, "kl_div_forward", (input, target), (None if reduced else loss,), None, (), (1 / divisor,),
        work=3, reduced=reduced, cuda_warps=8, cuda_resident_warps=48, LOG_TARGET=log_target, REDUCED=reduced,
    )  # fmt: skip
    return loss if partials is None else sum_loss(partials, loss.dtype)


def _forward_reference(input: torch.Tensor, target: torch.Tensor, reduction: str, log_target: bool) -> torch.Tensor:
    loss = kl_div_reference(input, target, reduction, log_target)
    return _forward_fake(input, target, reduction, log_target).copy_(loss)


def _forward_fake(input: torch.Tensor, target: torch.Tensor, reduction: str, log_target: bool) -> torch.Tensor:
    dtype = torch.promote_types(input.dtype, target.dtype)
    return torch.empty_like(input, dtype=dtype) if reduction == "none" else input.new_empty((), dtype=dtype)


def _backward_kernel(
    dloss: torch.Tensor, input: torch.Tensor, target: torch.Tensor, reduction: str, log_target: bool, need_dinput: bool, need_dtarget: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dinput, dtarget = _backward_fake(dloss, input, target, reduction, log_target, need_dinput, need_dtarget)
    if input.numel() == 0:
        return dinput, dtarget
    reduced = reduction != "none"
    read = (None if reduced else dloss, input if need_dtarget else None, target)
    wanted = (dinput if need_dinput else None, dtarget if need_dtarget else None)
    launch_divergence(
        _KERNELS, "kl_div_backward", read, wanted, None, (dloss if reduced else None,), (1 / _divisor(input.shape, reduction),),
        work=4 if need_dtarget else 2, reduced=False,
        LOG_TARGET=log_target, REDUCED=reduced, NEED_DINPUT=need_dinput, NEED_DTARGET=need_dtarget,
    )  # fmt: skip
    return dinput, dtarget


def _backward_reference(dloss, input, target, reduction, log_target, need_dinput, need_dtarget):
    outputs = _backward_fake(dloss, input, target, reduction, log_target, need_dinput, need_dtarget)

    def formula(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return kl_div_reference(input, target, reduction, log_target)

    for out, gradient in zip(outputs, reference_gradients(formula, (input, target), dloss, (need_dinput, need_dtarget))):
        if gradient is not None:
            out.copy_(gradient)
    return outputs


def _backward_fake(dloss, input, target, reduction, log_target, need_dinput, need_dtarget):
    return (
        torch.empty_like(input) if need_dinput else input.new_empty(0),
        torch.empty_like(target) if need_dtarget else target.new_empty(0),
    )


kl_div_forward = register_op(
    "npu_op_kl_div",
    "forward(Tensor input, Tensor target, str reduction, bool log_target) -> Tensor",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
kl_div_backward = register_op(
    "npu_op_kl_div",
    "backward(Tensor dloss, Tensor input, Tensor target, str reduction, bool log_target, bool need_dinput, bool need_dtarget)"
    " -> (Tensor dinput, Tensor dtarget)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
