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
class ProgramTime:
    """Cycles of one program.

    Attributes:
        cycles: from its first instruction to its last.
        busy: by pipe name, cycles with an instruction executing ("S": scalar operations and accesses).
        hbm_in, hbm_out, l2: bytes moved.
        stalls: who waited for what, where.
        slices: the instructions, when asked for.
    """

    cycles: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    hbm_in: float = 0.0
    hbm_out: float = 0.0
    l2: float = 0.0
    stalls: list[Stall] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)


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

    def end(self) -> float:
        return max(self.scalar, *self.free, *self.done)

    def shift(self, cycles: float) -> None:
        self.scalar += cycles
        self.free = [clock + cycles for clock in self.free]
        self.done = [clock + cycles for clock in self.done]
        for key, queue in self.flags.items():
            self.flags[key] = deque((time + cycles, event) for time, event in queue)
        self.starts = [deque(start + cycles for start in queue) for queue in self.starts]


def program_time(events: list[Event], trace: Trace, rate: Callable[[float], float], *, slices: bool = False) -> ProgramTime:
    """Schedule a recorded program.

    Args:
        events: the kernel's events.
        trace: what the program did.
        rate: HBM bytes per cycle that one stream of a core gets at a time (in cycles).
        slices: also return every recorded instruction.

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
    marks: list[tuple[float, list[float], dict[tuple[Pipe, int, Pipe, int], float]]] = []

    def show(pipe: Pipe, index: int, start: float, end: float) -> None:
        op = events[index].op
        shown.append(Slice(pipe.name, op.name.rpartition(".")[2] if op else "scalar", op.where if op else "", start, end))

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
            if slices:
                show(Pipe.V, index, start, start + busy)
        elif kind is Kind.TRANSFER:
            pipe, hbm, l2, fixed = entry[2:]
            start = begin(pipe)
            busy = fixed + hbm / min(rate(start), peak[pipe]) + l2 / peak[pipe]
            state.free[pipe] = start + busy
            state.done[pipe] = start + busy + arrival[pipe]
            state.totals[pipe] += busy
            state.totals[4 if pipe is Pipe.MTE2 else 5] += hbm
            state.totals[6] += l2
            state.last[pipe] = index
            if slices:
                show(pipe, index, start, start + busy)
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
            if slices:
                show(Pipe.S, index, state.scalar, state.scalar + entry[2])
            state.scalar += entry[2]
            state.totals[Pipe.S] += entry[2]
        elif kind is Kind.MARK:
            marks.append((state.end(), list(state.totals), dict(state.stalls)))
        elif kind is Kind.SKIP:
            measured, skipped = entry[2:]
            then, totals, stalls = marks.pop()
            times = skipped / measured
            state.shift((state.end() - then) * times)
            state.totals = [now + (now - before) * times for now, before in zip(state.totals, totals, strict=True)]
            for key, cycles in state.stalls.items():
                state.stalls[key] = cycles + (cycles - stalls.get(key, 0.0)) * times
    return _result(state, events, shown)


def _result(state: _Clocks, events: list[Event], shown: list[Slice]) -> ProgramTime:
    def where(index: int) -> str:
        op = events[index].op if index >= 0 else None
        return op.where if op else ""

    stalls: dict[tuple[str, str, str], float] = defaultdict(float)
    for (target, index, source, cause), cycles in state.stalls.items():
        stalls[target.name, where(index), f"{source.name} at {where(cause)}" if where(cause) else source.name] += cycles
    return ProgramTime(
        state.end(),
        {pipe.name: state.totals[pipe] for pipe in _PIPES},
        state.totals[4],
        state.totals[5],
        state.totals[6],
        longest_first(Stall(*key, cycles) for key, cycles in stalls.items()),
        shown,
    )


def longest_first(stalls: Iterable[Stall]) -> list[Stall]:
    """Stalls by length; equal ones in a fixed order."""
    return sorted(stalls, key=lambda stall: (-stall.cycles, stall.pipe, stall.where, stall.cause))
