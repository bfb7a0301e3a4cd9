"""Checks that the layout of a tensor changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from npu_op_runtime.spec import Case, OperatorSpec

from ..execution import Mode
from ..inputs import Inputs, sliced, spread
from ..passes import evaluate, named
from .check import check, require
from .selection import contiguous_representatives, differentiable_representatives
from .values import EXECUTED


def _first_with_vectors(spec: OperatorSpec) -> list[Case]:
    for case in contiguous_representatives(spec):
        inputs = spec.make_inputs(case, Inputs(empty=True)).values()
        if any(isinstance(value, torch.Tensor) and value.dim() == 1 for value in inputs):
            return [case]
    return []


@check(contiguous_representatives, *EXECUTED)
def check_strided(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Inputs and incoming gradients whose last dimension alone is contiguous give the same results."""
    require(evaluate(spec, case, mode=mode, layout=sliced))


@check(_first_with_vectors, *EXECUTED)
def check_strided_vectors(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Vectors (weights, targets) whose elements lie apart, a column of a matrix say, give the same results."""
    require(evaluate(spec, case, mode=mode, layout=spread))


@check(lambda spec: differentiable_representatives(spec)[:1], *EXECUTED)
def check_expanded_gradient(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """The gradient that `sum()` sends back, one value of stride 0, is one for every element."""
    require(evaluate(replace(spec, function=_summed(spec.function), reference=_summed(spec.reference)), case, mode=mode))


def _summed(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    def summed(**arguments: Any) -> torch.Tensor:
        outputs = [output for output in named(function(**arguments)).values() if output is not None and output.requires_grad]
        return torch.stack([output.sum() for output in outputs]).sum()

    return summed
