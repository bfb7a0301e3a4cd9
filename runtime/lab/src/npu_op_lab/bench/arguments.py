"""Calls of one provider with arguments of their own, in each mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..passes import named, wanted
from .points import Point


def copied(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same values in memory of their own."""
    return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


class Arguments:
    """One set of arguments and incoming gradients, and the calls with them."""

    def __init__(self, point: Point, function: Callable[..., Any], inputs: dict[str, Any]) -> None:
        names = wanted(point.spec, point.case, inputs)
        self._leaves = [inputs[name].detach().requires_grad_() for name in names]
        self._inputs = {**inputs, **dict(zip(names, self._leaves, strict=True))}
        self._function = functools.partial(function, **self._inputs, **point.case.options)
        self._upstream = [torch.randn_like(root) for root in _roots(self._function())] if names else []
        tensors = [*self._inputs.values(), *self._upstream]
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, torch.Tensor))

    def call(self, mode: str) -> Callable[[], Any]:
        """A call in a mode; for "backward" the forward is run now."""
        if mode == "no-grad-forward":
            return torch.no_grad()(self._function)
        if mode == "forward":
            return self._function
        if mode == "full":
            return lambda: self._backward(_roots(self._function()))
        return functools.partial(self._backward, _roots(self._function()))

    def _backward(self, roots: list[torch.Tensor]) -> Any:
        return torch.autograd.grad(roots, self._leaves, self._upstream, allow_unused=True)


def _roots(result: Any) -> list[torch.Tensor]:
    return [out for out in named(result).values() if out is not None and out.requires_grad]
