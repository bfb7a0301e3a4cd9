"""The host's part of a call: all providers in turns, since rounds that follow one another differ by half on a busy machine."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..inputs import Inputs
from .arguments import Arguments, copied
from .device import Device, no_collection
from .measurement import Measurement, spread
from .points import Point
from .verify import reduced

_ROUNDS = 15
# Calls of a round: this many, or fewer that take so long.
_CALLS = 20
_ROUND_SECONDS = 0.02
# Few rows: the host does the same for any number, and does not wait for the device.
_FORWARD_BYTES = 1 << 18


class ProviderRaised(Exception):
    """A provider raised where the host was timed."""

    def __init__(self, provider: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.provider = provider


def host_times(
    device: Device, point: Point, functions: Mapping[str, Callable[..., Any]], modes: Sequence[str]
) -> dict[str, list[Measurement]]:
    """µs a call, the mean of a round of calls for each of the rounds; of every provider but torch.compile, which would compile anew.

    Raises:
        ProviderRaised: one of them raised, at few rows.
    """
    few = replace(point, case=reduced(point, _FORWARD_BYTES))
    inputs = few.spec.make_inputs(few.case, Inputs(device.kind))
    arguments: dict[str, Arguments] = {}
    calls: dict[tuple[str, str], int] = {}
    for name, function in functions.items():
        if name == "compile":
            continue
        try:
            own = arguments[name] = Arguments(few, function, copied(inputs))
            for mode in modes:
                _, warm = (_round(device, [own.call(mode)]) for _ in range(2))
                calls[name, mode] = max(1, min(_CALLS, int(_ROUND_SECONDS * 1e6 / warm)))
        except Exception as error:  # another project's code: whatever it raises
            raise ProviderRaised(name, error) from error
    found: dict[str, list[Measurement]] = defaultdict(list)
    for mode in modes:
        rounds: dict[str, list[float]] = defaultdict(list)
        for _ in range(_ROUNDS):
            for name, own in arguments.items():
                rounds[name].append(_round(device, [own.call(mode) for _ in range(calls[name, mode])]))
        for name, timed in rounds.items():
            found[name].append(spread(mode, "host_time", timed))
    return found


def _round(device: Device, calls: Sequence[Callable[[], Any]]) -> float:
    with no_collection():
        device.synchronize()
        begun = time.perf_counter()
        for call in calls:
            call()
        microseconds = (time.perf_counter() - begun) * 1e6 / len(calls)
        device.synchronize()
    return microseconds
