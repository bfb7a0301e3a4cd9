"""The backend of a machine with an NPU or a CUDA GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..execution import Mode
from ..inputs import Inputs
from ..passes import Call, Reference, evaluate, reference_results, wanted
from .arguments import Arguments, copied
from .device import Device
from .host_time import host_times
from .measurement import Measurement, Place, Verification, spread
from .memory import MB
from .npu_profile import device_times
from .points import Point
from .providers import function_of
from .verify import reduced, verification

_WARM_UP = 3
_SECONDS = 0.25  # of device time for one provider in one mode
_SAMPLES = (10, 100)
# Sets of arguments take turns, so that a call finds nothing of itself in L2; twice its size leaves no part behind.
_L2_TURNS = 2
_SETS = (2, 16)
_COPY_BYTES = 2**30
# What a forward may move where results are judged over several seeds on the CPU.
_JUDGED_BYTES = 50_000_000


class Measured:
    """Measures on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._drawn: _Drawn | None = None
        source = f"a copy of {_COPY_BYTES // 2**20} MB, measured in this run"
        self.place = Place(device.name, "measured", device.soc, self._copy_bandwidth(), source)

    def resolve(self, point: Point, provider: str) -> Callable[..., Any]:
        if provider == "compile":
            # One shape at a time: a graph compiled for any shape is slower, and past a limit of recompilations nothing is compiled.
            torch.compiler.reset()
        return function_of(point.spec, provider)

    def verify(self, point: Point, provider: str, function: Callable[..., Any]) -> Verification:
        """At the very shape that is timed; the fp64 gold is computed on a GPU, beside an NPU on the CPU.

        Results of few elements (a loss) are judged over several seeds, at fewer rows.
        """
        at, kind = self._at(point), self._device.kind
        if at.reference is None:
            at.reference = reference_results(point.spec, point.case, device=kind, gold_device="cpu" if kind == "npu" else kind)
        inputs = copied(at.inputs)
        call = Call(point.case, inputs, wanted(point.spec, point.case, inputs), at.reference.upstream)
        verdicts = [verdict for verdict in at.reference.judge(call.run(function)) if verdict.name not in at.reference.small]
        how = f"{self._device.name}, the shape that is timed"
        if at.reference.small:
            fewer = reduced(point, _JUDGED_BYTES)
            verdicts += evaluate(point.spec, fewer, function=function, mode=Mode(kind, kind, kernels=True))
            how += f"; {', '.join(at.reference.small)} at {point.spec.rows} = {fewer.dims[point.spec.rows]}"
        self._device.empty_cache()
        return verification(verdicts, how)

    def measure(self, point: Point, provider: str, function: Callable[..., Any], modes: Sequence[str]) -> list[Measurement]:
        sets = self._argument_sets(point, function)
        found = [one for mode in modes for one in self._mode(mode, sets)]
        del sets
        self._device.empty_cache()
        return found

    def host_times(self, point: Point, functions: Mapping[str, Callable[..., Any]], modes: Sequence[str]) -> dict[str, list[Measurement]]:
        return host_times(self._device, point, functions, modes)

    def _at(self, point: Point) -> _Drawn:
        """The inputs of the point, drawn once for all providers."""
        if self._drawn is None or self._drawn.point is not point:
            self._drawn = None  # its memory first
            self._drawn = _Drawn(point, point.spec.make_inputs(point.case, Inputs(self._device.kind)))
        return self._drawn

    def _mode(self, mode: str, sets: Sequence[Arguments]) -> list[Measurement]:
        def once() -> list[float]:
            return self._device.time([arguments.call(mode) for arguments in sets])

        for _ in range(_WARM_UP):
            warm = once()
        slowest = max(warm) * 1e-3
        samples = min(max(int(_SECONDS / max(slowest, 1e-6)), _SAMPLES[0]), _SAMPLES[1])
        timed = [one for _ in range(-(-samples // len(sets))) for one in once()]
        found = [spread(mode, "speed", timed), self._memory(mode, sets[0])]
        if self._device.kind == "npu":
            found.append(spread(mode, "device_time", device_times([arguments.call(mode) for arguments in sets])))
        return found

    def _memory(self, mode: str, arguments: Arguments) -> Measurement:
        before = self._device.allocated
        call = arguments.call(mode)
        peak = (self._device.peak(call) - before + arguments.bytes) / MB
        return Measurement(mode, "memory", peak, peak, peak, 1)

    def _argument_sets(self, point: Point, function: Callable[..., Any]) -> list[Arguments]:
        inputs = self._at(point).inputs
        first = Arguments(point, function, copied(inputs))
        turns = -(-_L2_TURNS * self._device.l2_bytes // max(first.bytes, 1)) + 1
        # A set has results, and what its backward needs, beside the arguments: several times their size.
        room = int(self._device.free_bytes // (8 * max(first.bytes, 1)))
        count = max(_SETS[0], min(turns, room, _SETS[1]))
        return [first, *(Arguments(point, function, copied(inputs)) for _ in range(count - 1))]

    def _copy_bandwidth(self) -> float:
        source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=self._device.kind)
        target = torch.empty_like(source)
        times = self._device.time([lambda: target.copy_(source)] * 20)
        return 2 * _COPY_BYTES / (statistics.median(times) * 1e-3)


@dataclass
class _Drawn:
    """The inputs of a point on the device, and what the oracle compares with."""

    point: Point
    inputs: dict[str, Any]
    reference: Reference | None = None
