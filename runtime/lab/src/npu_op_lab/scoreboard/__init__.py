"""The table of Liger-Kernel's RFC #1159, generated from benchmark records: every row, forward, backward, full and memory."""

from __future__ import annotations

from .board import Board, Mark, Row, boards
from .files import failures, measured_before, modelled_before, packages_of, stale, write_files

__all__ = ["Board", "Mark", "Row", "boards", "failures", "measured_before", "modelled_before", "packages_of", "stale", "write_files"]
