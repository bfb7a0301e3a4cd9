"""What the operators differentiate: first order, reverse mode, or nothing. All else is refused, where PyTorch would drop it silently."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad


def tracked(*tensors: torch.Tensor | None) -> bool:
    """Whether a gradient of one of the tensors is wanted, so that a call must go through its autograd Function.

    Raises:
        NotImplementedError: one carries a tangent of forward-mode differentiation (torch.func.jvp, jacfwd).
    """
    # A registered op without a rule for tangents returns zeros for them.
    differentiating = forward_ad._current_level >= 0 and not torch.compiler.is_compiling()
    if differentiating and any(_has_tangent(tensor) for tensor in tensors if tensor is not None):
        raise NotImplementedError("forward-mode differentiation is not implemented; use reverse mode or implementation='eager'")
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110 - any() of a generator takes three times as long
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def refuse_gradients(operator: str, **tensors: torch.Tensor | None) -> None:
    """For an operator without a backward: its results would come without a gradient, and nobody would be told.

    Raises:
        NotImplementedError: a gradient of one of the tensors is wanted, or one carries a tangent; names it and what to do instead.
    """
    if not tracked(*tensors.values()):
        return
    argument = next(argument for argument, tensor in tensors.items() if tensor is not None and tensor.requires_grad)
    raise NotImplementedError(
        f"{operator} is for inference and {argument} requires a gradient: call it under torch.no_grad(), or with implementation='eager'"
    )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the backward of an autograd Function that has no second derivative.

    torch.autograd.function.once_differentiable raises only where the incoming gradient itself has one: the penalty in
    `grad(y.sum(), x, create_graph=True)` would count for nothing.

    Raises (when backward runs):
        NotImplementedError: `create_graph=True`.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        # Grad mode is on in backward exactly when a graph of it is wanted; tracing for torch.compile turns it on as well.
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        if not torch.compiler.is_compiling():
            raise NotImplementedError("there is no second derivative (create_graph=True); use implementation='eager' for one")
        with torch.no_grad():
            return backward(ctx, *gradients)

    return checked


def _has_tangent(tensor: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_gradtrackingtensor(tensor)) or forward_ad.unpack_dual(tensor).tangent is not None
