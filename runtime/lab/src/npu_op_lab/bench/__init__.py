"""Benchmarks of the operators: modelled for an Ascend SoC on any machine, measured on an NPU or a CUDA GPU.

`run` makes records, which are all that tables, plots, comparisons and the scoreboard are drawn from.
"""

from __future__ import annotations

from .compare import Change, compare
from .points import MODES, PROVIDERS, Point, points_of
from .records import BadRecords, Record, read, write
from .run import Outcome, run

__all__ = ["MODES", "PROVIDERS", "BadRecords", "Change", "Outcome", "Point", "Record", "compare", "points_of", "read", "run", "write"]
