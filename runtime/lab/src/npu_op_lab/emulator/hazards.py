"""Finds two pipes in one UB range, or two programs in one GM range, with nothing that orders them.

UB: each pipe has a vector clock, which a flag carries from the pipe that sets it to the pipe that waits. The scalar unit issues
every instruction, so what it has read or waited for is over for all that it issues later (its own stores are not, short of a flag
that carries them: they are buffered). An access conflicts with an earlier one of another pipe that its clock has not seen, when one
of the two writes. Within the vector pipe, which is pipelined, a read or write of what an earlier instruction wrote needs a pipe
barrier between them, or a wait that proves it over.
GM: programs of one launch are not ordered at all.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .dtypes import NUMPY, Array
from .machine import GmAccess
from .memory import UB_BYTES, View
from .trace import Kind, Pipe, Trace

_WORD = 4  # bytes: the granularity at which UB is watched


@dataclass(frozen=True)
class Hazard:
    """Two events without an order between them: their indices, and how they conflict ("write after read", ...)."""

    first: int
    second: int
    conflict: str


def ub_hazards(trace: Trace) -> tuple[list[Hazard], int | None]:
    """The unordered accesses of a program, and the event index of a wait that nothing sets (the rest is then not looked at)."""
    pipes = len(Pipe)
    clocks = np.zeros((pipes, pipes), np.int64)
    written = np.zeros((pipes, UB_BYTES // _WORD), np.int64)
    read = np.zeros_like(written)
    barrier = np.zeros(pipes, np.int64)
    history: list[list[int]] = [[-1] for _ in Pipe]
    flags: dict[tuple[Pipe, Pipe, int], deque[Array]] = defaultdict(deque)
    touched = {position: (reads, writes) for position, reads, writes in trace.touched}
    found: dict[Hazard, None] = {}

    def compare(pipe: Pipe, other: Pipe, last: Array, seen: int, event: int, conflict: str) -> None:
        latest = int(last.max(initial=0))
        if latest > seen:
            found[Hazard(history[other][latest], event, conflict)] = None

    for position, entry in enumerate(trace.events):
        kind, event = entry[0], entry[1]
        if kind is Kind.SET:
            source = clocks[entry[2][0]].copy()
            source[1:] = np.maximum(source[1:], clocks[Pipe.S, 1:])
            flags[entry[2]].append(source)
        elif kind is Kind.WAIT:
            if not flags[entry[2]]:
                return list(found), event
            target = entry[2][1]
            carried = flags[entry[2]].popleft()
            clocks[target] = np.maximum(clocks[target], carried)
            barrier[target] = max(barrier[target], carried[target])
        elif kind is Kind.BARRIER:
            if entry[2] is None:
                clocks[:] = clocks.max(axis=0)
                barrier[:] = clocks.diagonal()
            else:
                barrier[entry[2]] = clocks[entry[2], entry[2]]
        if position not in touched:
            continue
        pipe = {Kind.VECTOR: Pipe.V, Kind.ACCESS: Pipe.S}.get(kind) or (entry[2] if kind is Kind.TRANSFER else Pipe.S)
        if pipe is not Pipe.S:
            issued = clocks[Pipe.S].copy()
            issued[Pipe.S] = barrier[Pipe.S]
            clocks[pipe] = np.maximum(clocks[pipe], issued)
            barrier[pipe] = max(barrier[pipe], clocks[Pipe.S, pipe])
        clocks[pipe, pipe] += 1
        history[pipe].append(event)
        for writes, ranges in zip((False, True), touched[position], strict=True):
            for low, high in ranges:
                words = slice(low // _WORD, -(-high // _WORD))
                for other in Pipe:
                    if other is pipe:
                        if pipe is Pipe.V:
                            compare(pipe, other, written[other, words], int(barrier[pipe]), event, "no pipe barrier after the write")
                        continue
                    seen = int(clocks[pipe, other])
                    compare(pipe, other, written[other, words], seen, event, "write after write" if writes else "read after write")
                    if writes:
                        compare(pipe, other, read[other, words], seen, event, "write after read")
        # The instruction's own operands are compared with what came before it, not with one another.
        for last, ranges in zip((read, written), touched[position], strict=True):
            for low, high in ranges if pipe is not Pipe.S or last is written else ():
                last[pipe, low // _WORD : -(-high // _WORD)] = clocks[pipe, pipe]
    return list(found), None


def gm_hazards(accesses: list[GmAccess]) -> list[tuple[GmAccess, GmAccess]]:
    """Pairs of accesses of two programs to the same bytes, at least one of them a write, not both atomic; one pair per event pair."""
    found: dict[tuple[int, int], tuple[GmAccess, GmAccess]] = {}
    by_memory: dict[int, list[GmAccess]] = defaultdict(list)
    for access in accesses:
        by_memory[id(access.view.memory)].append(access)
    for group in by_memory.values():
        for first, second in _conflicts(group):
            found.setdefault((first.event, second.event), (first, second))
    return list(found.values())


def _conflicts(group: list[GmAccess]) -> Iterator[tuple[GmAccess, GmAccess]]:
    """Conflicts in one memory.

    Its elements remember who last wrote them, plainly and atomically (0: nobody), and who before that was another program:
    the last writer may be the very program that now reads.
    """
    writers = [number for number, access in enumerate(group) if access.writes]
    if not writers:
        return
    width = min(NUMPY[access.view.dtype].itemsize for access in group)
    elements = group[0].view.memory.size // width + 1
    programs = np.array([-1, *(access.program for access in group)])
    plain, atomic = ((np.zeros(elements, np.int32), np.zeros(elements, np.int32)) for _ in range(2))
    for number in [*writers, *(number for number, access in enumerate(group) if not access.writes)]:
        access = group[number]
        for marks in plain if access.writes and access.atomic else (*plain, *atomic):
            for other in np.unique(_elements(marks, access.view, width)):
                if other and programs[other] != access.program:
                    yield group[other - 1], access
        if access.writes:
            last, before = (_elements(marks, access.view, width) for marks in (atomic if access.atomic else plain))
            np.copyto(before, last, where=(last > 0) & (programs[last] != access.program))
            last[...] = number + 1


def _elements(marks: Array, view: View, width: int) -> Array:
    """The marks of a view's elements, `width` bytes each; a wider element has several."""
    size = NUMPY[view.dtype].itemsize
    strides = tuple(stride * size // width * marks.itemsize for stride in view.strides)
    return np.ndarray((*view.sizes, size // width), marks.dtype, marks, view.start // width * marks.itemsize, (*strides, marks.itemsize))
