"""Which cases of a spec a check runs on."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import torch

from npu_op_runtime.spec import Case, OperatorSpec

from ..inputs import Inputs


def every(spec: OperatorSpec) -> list[Case]:
    """All cases, benchmark shapes too."""
    return list(spec.cases)


def values(spec: OperatorSpec) -> list[Case]:
    """The cases that are small enough to execute."""
    return [case for case in spec.cases if "values" in case.tags]


def representatives(spec: OperatorSpec) -> list[Case]:
    """The executed cases that bring a dtype of an argument, an argument left out, a layout, an option's value or a tag not seen before."""
    seen: set[Hashable] = set()
    chosen = []
    for case in values(spec):
        new = set(_features(spec, case)) - seen
        if new:
            chosen.append(case)
            seen |= new
    return chosen


def pure_representatives(spec: OperatorSpec) -> list[Case]:
    """The representatives that do not overwrite their inputs."""
    return [case for case in representatives(spec) if "inplace" not in case.tags]


def differentiable_representatives(spec: OperatorSpec) -> list[Case]:
    """The representatives that have a gradient and do not overwrite their inputs."""
    return [case for case in pure_representatives(spec) if spec.differentiable and "gradient-free" not in case.tags]


def inference_representatives(spec: OperatorSpec) -> list[Case]:
    """The representatives of an operator without a backward."""
    return [] if spec.differentiable else representatives(spec)


def contiguous_representatives(spec: OperatorSpec) -> list[Case]:
    """The representatives whose layout is the default one."""
    return [case for case in pure_representatives(spec) if case.layout == "contiguous"]


def first(spec: OperatorSpec) -> list[Case]:
    """The first executed case."""
    return values(spec)[:1]


def _features(spec: OperatorSpec, case: Case) -> Iterator[Hashable]:
    yield "layout", case.layout
    yield from (("option", name, value) for name, value in case.options.items())
    yield from (("tag", tag) for tag in case.tags)
    for name, value in spec.make_inputs(case, Inputs(empty=True)).items():
        yield "argument", name, value.dtype if isinstance(value, torch.Tensor) else type(value)
