"""The time of one launch on the whole chip: programs spread over the vector cores, which share the HBM.

Programs that did the same take the same time, so one of each class is scheduled. HBM is a fluid that all active streams share
equally: a stream (one direction of one core) moves at its core's own rate, or, where the streams together would draw more
than the ceiling, at the highest rate at which they do not. Cores are taken to be spread evenly in phase, so that a core that computes
leaves its share to the others. When cores run out of work the rest share what they leave.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import costs
from .timeline import ProgramTime, program_time
from .trace import Trace
from .translate import Event

_TOLERANCE = 1e-5
# Cores that finish within this share of one another are one group; later groups see the bandwidth that earlier ones leave.
_GROUP = 0.02
_PHASES = 4


@dataclass(frozen=True)
class CoreClass:
    """Cores with the same work.

    Attributes:
        programs: the classes of the programs that such a core runs, in order.
        cores: how many there are; first: the index of one of them.
    """

    programs: tuple[int, ...]
    cores: int
    first: int


@dataclass
class CoreTime:
    """One class of cores: its cycles, and the time of each of its programs."""

    core: CoreClass
    cycles: float
    programs: list[ProgramTime]

    @property
    def hbm(self) -> float:
        """HBM bytes that one core moves."""
        return sum(program.hbm_in + program.hbm_out for program in self.programs)


def core_classes(program_classes: Sequence[int], cores: int) -> list[CoreClass]:
    """Group the cores: program `i` of the grid runs on core `i % cores`, a core's programs one after another."""
    used = min(cores, len(program_classes))
    work = [tuple(program_classes[core::cores]) for core in range(used)]
    count = Counter(work)
    return [CoreClass(programs, count[programs], work.index(programs)) for programs in count]


class Chip:
    """Times core classes under a ceiling.

    Args:
        events: the kernel's events.
        traces: one trace per program class.
        classes: the cores.
        bandwidth: HBM bytes per cycle of the whole chip.
    """

    def __init__(self, events: list[Event], traces: list[Trace], classes: list[CoreClass], bandwidth: float) -> None:
        self._events, self._traces, self._classes, self._bandwidth = events, traces, classes, bandwidth
        figures = costs.table()
        self._peak = float(max(figures["dma_bytes_per_cycle_in"], figures["dma_bytes_per_cycle_out"]))
        self._start = figures["program_start"]
        self._steady: dict[tuple[int, float], ProgramTime] = {}

    def time(self) -> tuple[list[CoreTime], Callable[[float], float]]:
        """Every class of cores, longest first, and the HBM rate of a stream by time."""
        steps: list[tuple[float, float]] = []  # (until, rate)
        left = list(self._classes)
        while left and len(steps) < _PHASES:
            rate = self._share(left)
            ends = {core: self._core(core, [*steps, (float("inf"), rate)]).cycles for core in left}
            first = min(ends.values())
            still = [core for core in left if ends[core] > first * (1 + _GROUP)]
            steps.append((first if still and len(steps) < _PHASES - 1 else float("inf"), rate))
            left = still
        times = [self._core(core, steps) for core in self._classes]
        times.sort(key=lambda time: -time.cycles)
        # The phases are approximate: the whole traffic never moves faster than the ceiling.
        times[0].cycles = max(times[0].cycles, sum(time.core.cores * time.hbm for time in times) / self._bandwidth)
        return times, functools.partial(_rate, tuple(steps))

    def detail(self, program_class: int, rate: Callable[[float], float]) -> ProgramTime:
        """One program with its instructions and its work by operation."""
        return program_time(self._events, self._traces[program_class], rate, detail=True)

    def _share(self, classes: list[CoreClass]) -> float:
        """The highest rate of a stream at which `classes` together draw no more than the ceiling."""
        if self._drawn(classes, self._peak) <= self._bandwidth:
            return self._peak
        # With every stream busy all the time the ceiling is just reached.
        low, high = self._bandwidth / (2 * sum(core.cores for core in classes)), self._peak
        while high - low > _TOLERANCE * low:
            middle = (low * high) ** 0.5
            if self._drawn(classes, middle) <= self._bandwidth:
                low = middle
            else:
                high = middle
        return low

    def _drawn(self, classes: list[CoreClass], rate: float) -> float:
        drawn = 0.0
        for core in classes:
            time = self._core(core, [(float("inf"), rate)])
            drawn += core.cores * time.hbm / max(time.cycles, 1.0)
        return drawn

    def _core(self, core: CoreClass, steps: list[tuple[float, float]]) -> CoreTime:
        clock, programs = 0.0, []
        for number, program_class in enumerate(core.programs):
            clock += self._start if number else 0.0
            until, rate = next(step for step in steps if clock < step[0])
            time = self._at(program_class, rate)
            if clock + time.cycles > until:
                began = clock
                time = program_time(self._events, self._traces[program_class], lambda now, began=began: _rate(tuple(steps), began + now))  # type: ignore[misc]
            clock += time.cycles
            programs.append(time)
        return CoreTime(core, clock, programs)

    def _at(self, program_class: int, rate: float) -> ProgramTime:
        key = program_class, rate
        if key not in self._steady:
            self._steady[key] = program_time(self._events, self._traces[program_class], lambda _: rate)
        return self._steady[key]


def _rate(steps: tuple[tuple[float, float], ...], now: float) -> float:
    return next(rate for until, rate in steps if now < until)
