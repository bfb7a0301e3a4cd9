"""The time line of one program on one vector core.

The scalar unit issues instructions in program order; the vector, MTE2 and MTE3 pipes each run their queue in order and
concurrently with one another, held back only by flags, barriers and the depth of their queue. A transfer holds its pipe for its fixed
cycles, then for its HBM bytes at the rate the chip grants a stream (never above the core's own) and its L2 bytes at the core's rate;
its data have arrived a latency later, while the pipe goes on. A vector instruction likewise: its result is there a latency later.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from . import costs
from .trace import Kind, Pipe, Trace
from .translate import Event

_PIPES = (Pipe.S, Pipe.V, Pipe.MTE2, Pipe.MTE3)


@dataclass
class Stall:
    """Cycles that `pipe` stood still at line `where` for `cause` ("MTE2 at kernel.py:12")."""

    pipe: str
    where: str
    cause: str
    cycles: float


@dataclass
class Slice:
    """One instruction on the time line, in cycles from the start of its program."""

    pipe: str
    name: str
    where: str
    start: float
    end: float


@dataclass
class Work:
    """What one operation of the program did in all.

    Attributes:
        pipe, name, where: the pipe, the operation ("load", "vadd") and its source line.
        times: executions.
        cycles: that the pipe was busy with them.
        hbm, l2: bytes moved from or to HBM, and served by L2.
        pieces: contiguous runs that its transfers were made of.
    """

    pipe: str
    name: str
    where: str
    times: float
    cycles: float
    hbm: float
    l2: float
    pieces: float


@dataclass
class ProgramTime:
    """Cycles of one program.

    Attributes:
        cycles: from its first instruction to its last.
        busy: by pipe name, cycles with an instruction executing ("S": scalar operations and accesses).
        hbm_in, hbm_out, l2: bytes moved.
        stalls: who waited for what, where.
        slices, work: the recorded instructions, and all work by operation, when asked for.
    """

    cycles: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    hbm_in: float = 0.0
    hbm_out: float = 0.0
    l2: float = 0.0
    stalls: list[Stall] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


class Deadlock(Exception):
    """A pipe waits for a flag that nothing has set; `event` is the index of the wait."""

    def __init__(self, event: int) -> None:
        super().__init__(f"event {event} waits for a flag that nothing sets")
        self.event = event


class _Clocks:
    """All of the state that moves forward in time, so that a skipped stretch of equal trips can be added at once."""

    def __init__(self) -> None:
        self.scalar = 0.0
        self.free = [0.0] * len(_PIPES)  # when the pipe can take its next instruction
        self.done = [0.0] * len(_PIPES)  # when its last result is there
        self.flags: dict[tuple[Pipe, Pipe, int], deque[tuple[float, int]]] = defaultdict(deque)
        self.starts: list[deque[float]] = [deque() for _ in _PIPES]
        self.last = [-1] * len(_PIPES)  # the last event of each pipe
        self.totals = [0.0] * 7  # busy by pipe, HBM in, HBM out, L2
        self.stalls: dict[tuple[Pipe, int, Pipe, int], float] = defaultdict(float)
        self.work: dict[tuple[Pipe, int, str], float] = defaultdict(float)  # by event, what "Work" counts

    def end(self) -> float:
        return max(self.scalar, *self.free, *self.done)

    def shift(self, cycles: float) -> None:
        self.scalar += cycles
        self.free = [clock + cycles for clock in self.free]
        self.done = [clock + cycles for clock in self.done]
        for key, queue in self.flags.items():
            self.flags[key] = deque((time + cycles, event) for time, event in queue)
        self.starts = [deque(start + cycles for start in queue) for queue in self.starts]


def program_time(events: list[Event], trace: Trace, rate: Callable[[float], float], *, detail: bool = False) -> ProgramTime:
    """Schedule a recorded program.

    Args:
        events: the kernel's events.
        trace: what the program did.
        rate: HBM bytes per cycle that one stream of a core gets at a time (in cycles).
        detail: also return `slices` and `work`.

    Raises:
        Deadlock: a flag is awaited that nothing sets.
    """
    figures = costs.table()
    latency, barrier, flag, depth = figures["vector_latency"], figures["barrier"], figures["flag"], figures["queue_depth"]
    issue, scalar_op = figures["scalar_issue"], figures["scalar_op"]
    peak = (0.0, 0.0, float(figures["dma_bytes_per_cycle_in"]), float(figures["dma_bytes_per_cycle_out"]))
    arrival = (0.0, 0.0, float(figures["dma_latency_in"]), float(figures["dma_latency_out"]))
    state = _Clocks()
    shown: list[Slice] = []
    marks: list[tuple[float, list[float], dict[tuple[Pipe, int, Pipe, int], float], dict[tuple[Pipe, int, str], float]]] = []

    def note(pipe: Pipe, index: int, start: float, cycles: float, **counts: float) -> None:
        name, where = _place(events, index)
        shown.append(Slice(pipe.name, name, where, start, start + cycles))
        for count, amount in {"times": 1.0, "cycles": cycles, **counts}.items():
            state.work[pipe, index, count] += amount

    def begin(pipe: Pipe) -> float:
        """Issue one instruction; returns when the pipe can start it."""
        queue = state.starts[pipe]
        state.scalar += issue
        state.totals[Pipe.S] += issue
        if len(queue) >= depth:
            state.scalar = max(state.scalar, queue.popleft())
        start = max(state.scalar, state.free[pipe])
        queue.append(start)
        return start

    for entry in trace.events:
        kind, index = entry[0], entry[1]
        if index >= 0 and (work := events[index].scalar_ops):
            state.scalar += work * scalar_op
            state.totals[Pipe.S] += work * scalar_op
        if kind is Kind.VECTOR:
            start = begin(Pipe.V)
            busy = entry[2]
            state.free[Pipe.V] = start + busy
            state.done[Pipe.V] = start + busy + latency
            state.totals[Pipe.V] += busy
            state.last[Pipe.V] = index
            if detail:
                note(Pipe.V, index, start, busy)
        elif kind is Kind.TRANSFER:
            pipe, hbm, l2, fixed = entry[2:6]
            start = begin(pipe)
            busy = fixed + hbm / min(rate(start), peak[pipe]) + l2 / peak[pipe]
            state.free[pipe] = start + busy
            state.done[pipe] = start + busy + arrival[pipe]
            state.totals[pipe] += busy
            state.totals[4 if pipe is Pipe.MTE2 else 5] += hbm
            state.totals[6] += l2
            state.last[pipe] = index
            if detail:
                note(pipe, index, start, busy, hbm=hbm, l2=l2, pieces=entry[6])
        elif kind is Kind.SET:
            source = entry[2][0]
            ready = state.scalar if source is Pipe.S else max(state.done[source], state.free[source])
            state.flags[entry[2]].append((ready + flag, state.last[source]))
        elif kind is Kind.WAIT:
            if not state.flags[entry[2]]:
                raise Deadlock(index)
            source, target, _ = entry[2]
            time, cause = state.flags[entry[2]].popleft()
            now = state.scalar if target is Pipe.S else max(state.free[target], state.scalar)
            if time > now:
                state.stalls[target, index, source, cause] += time - now
            if target is Pipe.S:
                state.scalar = max(now, time)
            else:
                state.free[target] = max(now, time)
        elif kind is Kind.BARRIER:
            if entry[2] is None:
                state.scalar = state.end() + barrier
            else:
                pipe = entry[2]
                state.free[pipe] = max(state.free[pipe], state.done[pipe]) + barrier
        elif kind is Kind.ACCESS:
            state.last[Pipe.S] = index
            if detail:
                note(Pipe.S, index, state.scalar, entry[2])
            state.scalar += entry[2]
            state.totals[Pipe.S] += entry[2]
        elif kind is Kind.MARK:
            marks.append((state.end(), list(state.totals), dict(state.stalls), dict(state.work)))
        elif kind is Kind.SKIP:
            measured, skipped = entry[2:]
            then, totals, stalls, done = marks.pop()
            times = skipped / measured
            state.shift((state.end() - then) * times)
            state.totals = [now + (now - past) * times for now, past in zip(state.totals, totals, strict=True)]
            _repeat(state.stalls, stalls, times)
            _repeat(state.work, done, times)
    return _result(state, events, shown)


def _result(state: _Clocks, events: list[Event], shown: list[Slice]) -> ProgramTime:
    stalls: dict[tuple[str, str, str], float] = defaultdict(float)
    for (target, index, source, cause), cycles in state.stalls.items():
        reason = _place(events, cause)[1]
        stalls[target.name, _place(events, index)[1], f"{source.name} at {reason}" if reason else source.name] += cycles
    return ProgramTime(
        state.end(),
        {pipe.name: state.totals[pipe] for pipe in _PIPES},
        state.totals[4],
        state.totals[5],
        state.totals[6],
        longest_first(Stall(*key, cycles) for key, cycles in stalls.items()),
        shown,
        _work(state, events),
    )


def _work(state: _Clocks, events: list[Event]) -> list[Work]:
    operations = dict.fromkeys((pipe, index) for pipe, index, _ in state.work)
    return [
        Work(pipe.name, *_place(events, index), *(state.work.get((pipe, index, count), 0.0) for count in _COUNTS))
        for pipe, index in operations
    ]


_Key = TypeVar("_Key")


def _repeat(amounts: dict[_Key, float], past: dict[_Key, float], times: float) -> None:
    """Add what has grown since `past` that many times more."""
    for key, amount in amounts.items():
        amounts[key] = amount + (amount - past.get(key, 0.0)) * times


_COUNTS = ("times", "cycles", "hbm", "l2", "pieces")


def _place(events: list[Event], index: int) -> tuple[str, str]:
    """Name and source line of an event's operation: "vadd", "load" for a transfer, "scalar load" for the scalar unit's."""
    op = events[index].op if index >= 0 else None
    if op is None:
        return "scalar", ""
    return op.name.removeprefix("hivm.hir.").replace("memref.", "scalar "), op.where


def longest_first(stalls: Iterable[Stall]) -> list[Stall]:
    """Stalls by length; equal ones in a fixed order."""
    return sorted(stalls, key=lambda stall: (-stall.cycles, stall.pipe, stall.where, stall.cause))
