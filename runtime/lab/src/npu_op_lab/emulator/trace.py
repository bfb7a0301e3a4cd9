"""What one program did, as the time line needs it: the events in program order, with a long loop cut to sampled trips."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

# Trips of a loop that are recorded: the first ones fill the pipes, then MEASURED ones give the steady period, the last ones
# carry the tail. All even: with double buffering two trips are one period.
WARM, MEASURED, LAST = 6, 4, 2


class Pipe(IntEnum):
    """The queues of a vector core that run concurrently."""

    S = 0
    V = 1
    MTE2 = 2
    MTE3 = 3


class Kind(IntEnum):
    """Kinds of recorded events; the fields after (kind, event index) differ."""

    SCALAR = 0  # cycles
    VECTOR = 1  # cycles
    TRANSFER = 2  # pipe, bytes of HBM, bytes of L2, fixed cycles, contiguous pieces, storage outside
    SET = 3  # (set pipe, wait pipe, id)
    WAIT = 4  # (set pipe, wait pipe, id)
    BARRIER = 5  # pipe, or None for all
    ACCESS = 6  # cycles
    MARK = 7  # the steady period is measured from here
    SKIP = 8  # measured trips, skipped trips


class Trace:
    """Events of one program.

    Attributes:
        events: tuples (kind, event index, ...), see `Kind`; two programs with equal events take equal time.
        touched: for each event that touches UB, its position in `events` and the byte ranges it reads and writes.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.touched: list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]] = []
