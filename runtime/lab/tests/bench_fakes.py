"""A backend that needs neither device nor compiler, and the operator that it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from npu_op_lab.bench.measurement import Measurement, Place, Verification
from npu_op_lab.bench.points import Point
from npu_op_lab.bench.providers import Absent, function_of
from npu_op_lab.bench.verify import verification
from npu_op_lab.passes import evaluate
from npu_op_runtime.spec import Case, InputFactory, Model, OperatorSpec, Traffic


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def zeros(x: torch.Tensor) -> torch.Tensor:
    """A peer that is fast and wrong."""
    return x * 0


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    return {"x": factory.randn(case.dims["T"], case.dims["H"], dtype=case.torch_dtype)}


def _traffic(case: Case) -> Traffic:
    elements = case.dims["T"] * case.dims["H"] * case.torch_dtype.itemsize
    return Traffic(2 * elements, 3 * elements)


def bench_case(model: Model, tokens: int) -> Case:
    return Case(f"{model.name}-T{tokens}", {"T": tokens, "H": 64}, "bfloat16", tags=frozenset({"bench"}))


def spec(**changes: Any) -> OperatorSpec:
    """An operator that doubles, and knows a peer."""
    fields = {"function": double, "reference": double, "peers": {"liger": double}, "bench_case": bench_case, **changes}
    return OperatorSpec("toy", (), _make_inputs, differentiable=("x",), traffic=_traffic, **fields)


class FakeBackend:
    """Really judges results on the CPU; times are `microseconds[provider]` per row."""

    def __init__(self, device: str = "Fake 1", **microseconds: float) -> None:
        self.place = Place(device, "measured", None, 1e12, "made up")
        self._microseconds = {"ours": 1.0, "eager": 3.0, "liger": 2.0} | microseconds

    def resolve(self, point: Point, provider: str) -> Callable[..., Any]:
        if provider == "vendor":
            raise Absent("this machine has no vendor")
        return function_of(point.spec, provider)

    def verify(self, point: Point, provider: str, function: Callable[..., Any]) -> Verification:
        return verification(evaluate(point.spec, point.case, function=function), "eager on the CPU")

    def measure(self, point: Point, provider: str, function: Callable[..., Any], modes: Sequence[str]) -> list[Measurement]:
        time = self._microseconds[provider] * point.tokens * 1e-3
        found = []
        for mode in modes:
            found += [Measurement(mode, "speed", time, 0.9 * time, 1.2 * time, 10), Measurement(mode, "memory", 5.0, 5.0, 5.0, 10)]
        return found

    def host_times(self, point: Point, functions: Mapping[str, Callable[..., Any]], modes: Sequence[str]) -> dict[str, list[Measurement]]:
        return {}
