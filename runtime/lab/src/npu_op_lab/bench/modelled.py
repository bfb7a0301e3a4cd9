"""The backend of a machine without accelerator: time by the emulator and the eager model, memory counted, values by the emulator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from npu_op_runtime.soc import get_soc
from npu_op_runtime.spec import Case

from ..execution import Mode, has_offline_compiler
from ..inputs import Inputs
from ..passes import evaluate, forward, random_upstream, wanted
from .measurement import Measurement, Place, Verification
from .memory import MB, PeakMemory
from .points import Point
from .providers import Absent, function_of, on_ascend
from .verify import reduced, verification

if TYPE_CHECKING:  # needs triton-ascend, which a CUDA machine does not have
    from ..emulator import KernelTiming
    from ..emulator.costs import Ceiling

# The oracle judges the width of the point at as many rows as the emulator computes in about a second.
_CHECKED_BYTES = 6_000_000
_CHECKED_ROWS = 50
_PROVIDERS = ("ours", "eager", "liger")
_CEILINGS = {"cann": "CANN's figure", "measured": "what public measurements reach on a part with this HBM"}


class Modelled:
    """Models one SoC under one ceiling of the emulator.

    Raises:
        Absent: triton-ascend or the vendor's compiler is not installed.
        ValueError: unknown SoC, or one without a GM rate.
    """

    def __init__(self, soc: str, ceiling: Ceiling = "measured") -> None:
        if not has_offline_compiler():
            raise Absent("no NPU and no CUDA GPU here, and modelling needs the offline compiler: pip install 'npu-op-lab[compiler]'")
        from ..emulator import emulate, gm_bandwidth

        row = get_soc(soc)
        self._ceiling: Ceiling = ceiling
        self._emulate = functools.partial(emulate, row.name)
        self._verified: dict[str, Verification] = {}
        self._measured: dict[tuple[str, tuple[str, ...]], list[Measurement]] = {}
        self.place = Place(row.name, "modelled", row.name, gm_bandwidth(row, ceiling), _CEILINGS[ceiling])

    def resolve(self, point: Point, provider: str) -> Callable[..., Any]:
        if provider not in _PROVIDERS:
            raise Absent("measured on a device only, its kernels cannot be compiled offline")
        function = function_of(point.spec, provider)
        return on_ascend(function) if provider == "liger" else function

    def verify(self, point: Point, provider: str, function: Callable[..., Any]) -> Verification:
        """Values of the same width at fewer rows; the timed shape is only modelled."""
        if provider == "eager":
            return Verification(True, "the reference itself")
        case = reduced(point, _CHECKED_BYTES, _CHECKED_ROWS)
        key = _key(point.spec.name, provider, case)
        if key not in self._verified:
            mode = Mode(f"emulator-{self.place.soc}", "cpu", kernels=True, enter=self._emulate)
            verdicts = evaluate(point.spec, case, function=function, mode=mode)
            self._verified[key] = verification(verdicts, f"{mode.name}, {point.spec.rows} = {case.dims[point.spec.rows]}")
        return self._verified[key]

    def measure(self, point: Point, provider: str, function: Callable[..., Any], modes: Sequence[str]) -> list[Measurement]:
        # Models share sizes, and the same call has the same modelled time.
        key = _key(point.spec.name, provider, point.case)
        if (key, tuple(modes)) not in self._measured:
            self._measured[key, tuple(modes)] = self._measure(point, provider, function, modes)
        return self._measured[key, tuple(modes)]

    def host_times(self, point: Point, functions: Mapping[str, Callable[..., Any]], modes: Sequence[str]) -> dict[str, list[Measurement]]:
        return {}  # a CPU's time says nothing of an NPU's host

    def _measure(self, point: Point, provider: str, function: Callable[..., Any], modes: Sequence[str]) -> list[Measurement]:
        eager = provider == "eager"
        time, device = (self._eager, "meta") if eager else (self._emulated, "cpu")
        phases = {}
        if "no-grad-forward" in modes:
            phases["no-grad-forward"] = _inference(point, function, time, device)
        if {"forward", "backward", "full"}.intersection(modes):
            phases["forward"], phases["backward"] = _training(point, function, time, device)
            phases["full"] = phases["forward"] + phases["backward"]
        return [measurement for mode in modes for measurement in phases[mode].measurements(mode)]

    def _emulated(self, call: Callable[[], Any]) -> tuple[Any, _Phase]:
        from .kernels import describe

        with self._emulate(values=False, ceiling=self._ceiling) as run:
            result = call()
        kernels = tuple(describe(done.launch.kernel, timing) for done, timing in zip(run.launches, run.kernels, strict=True))
        return result, _Phase(run.seconds, len(kernels) + len(run.modelled.aten.kernels), tuple(run.kernels), kernels)

    def _eager(self, call: Callable[[], Any]) -> tuple[Any, _Phase]:
        from ..emulator import model_eager

        results: list[Any] = []
        timing = model_eager(lambda: results.append(call()), soc=self.place.device, ceiling=self._ceiling)
        return results[0], _Phase(timing.seconds, len(timing.kernels))


@dataclass(frozen=True)
class _Phase:
    """Modelled seconds, launches of any kernel, those of Triton kernels, and the peak of memory in bytes."""

    seconds: float
    launches: int
    timings: tuple[KernelTiming, ...] = ()
    kernels: tuple[dict[str, Any], ...] = ()
    peak: int = 0

    def __add__(self, after: _Phase) -> _Phase:
        return _Phase(
            self.seconds + after.seconds,
            self.launches + after.launches,
            self.timings + after.timings,
            self.kernels + after.kernels,
            max(self.peak, after.peak),
        )

    def measurements(self, mode: str) -> list[Measurement]:
        bound = max(self.timings, key=lambda timing: timing.seconds).bound if self.timings else None
        busy = sum(timing.seconds for timing in self.timings)
        share = sum(timing.seconds * timing.roof_share for timing in self.timings) / busy if busy else None
        speed, memory = self.seconds * 1e3, self.peak / MB
        return [
            Measurement(mode, "speed", speed, speed, speed, 1, bound, share, self.kernels, self.launches),
            Measurement(mode, "memory", memory, memory, memory, 1),
        ]


_Time = Callable[[Callable[[], Any]], "tuple[Any, _Phase]"]


def _inference(point: Point, function: Callable[..., Any], time: _Time, device: str) -> _Phase:
    inputs = point.spec.make_inputs(point.case, Inputs(device, empty=True))
    with PeakMemory(inputs.values()) as memory, torch.no_grad():
        _, phase = time(lambda: function(**inputs, **point.case.options))
    return replace(phase, peak=memory.peak)


def _training(point: Point, function: Callable[..., Any], time: _Time, device: str) -> tuple[_Phase, _Phase]:
    """Forward and backward; the incoming gradients are there from the start, as in Liger's benchmarks."""
    spec, case = point.spec, point.case
    inputs = spec.make_inputs(case, Inputs(device, empty=True))
    names = wanted(spec, case, inputs)
    memory = PeakMemory(inputs.values())
    with memory:
        done, first = time(lambda: forward(function, case, inputs, names))
    first = replace(first, peak=memory.peak)
    with memory:
        upstream = random_upstream(done.outputs, seed=0, empty=True)
        for gradient in upstream.values():
            if gradient.dim() == 0:
                gradient.fill_(0.5)  # a number may decide what a kernel does: no figure may hang on what was in memory
        memory.restart()
        _, second = time(lambda: done.backward(upstream))
    return first, replace(second, peak=memory.peak)


def _key(operator: str, provider: str, case: Case) -> str:
    return repr((operator, provider, sorted(case.dims.items()), case.dtype, case.options, case.layout))
