"""Marks of the table from records: ours against eager, as the RFC counts, and ours against Liger-Kernel."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from ..bench.measurement import RAISED
from ..bench.records import Cell, Record, cells

COLUMNS = ("forward", "backward", "full", "memory")
# An operator that eager runs as one kernel cannot be beaten where that kernel is modelled at full bandwidth: level with it is all there is.
_LEVEL = 0.95

Kind = Literal["pass", "level", "fail", "refused", "failed", "none"]


@dataclass(frozen=True)
class Mark:
    """One cell: the worst ratio over the sizes, theirs over ours, above 1 when ours is better.

    "pass": above 1 (memory: at least 1); "level": at least 0.95 of a modelled single eager kernel; "fail"; "refused": by the oracle;
    "failed": ours raised, or has no record where a peer has; "none": nothing to compare.
    """

    kind: Kind
    ratio: float | None = None


@dataclass(frozen=True)
class Row:
    """One row: marks in the order of `COLUMNS`; `rfc` are the RFC's own for Liger-Kernel 0.7.0, `missing` says why there are no marks."""

    kernel: str
    eager: tuple[Mark, ...]
    liger: tuple[Mark, ...]
    rfc: tuple[bool, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Board:
    """The table of one device."""

    device: str
    basis: str
    roof: str
    sizes: str
    stack: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        return f"{self.basis.capitalize()} on {self.device}"

    @property
    def summary(self) -> str:
        """Counts and the geometric mean against Liger."""
        shown = [mark for row in self.rows for mark in row.eager if mark.kind != "none"]
        good = sum(mark.kind in ("pass", "level") for mark in shown)
        there = sum(not row.missing for row in self.rows)
        said = f"{good} of {len(shown)} cells of {there} rows pass against eager; {len(self.rows) - there} rows have no figures here."
        speeds = [mark.ratio for row in self.rows for mark in row.liger[:3] if mark.ratio]
        if speeds:
            mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
            said += f" Against Liger-Kernel's kernels: {mean:.2f}× by geometric mean over {len(speeds)} cells, {min(speeds):.2f}× at worst."
        return said


def boards(records: Iterable[Record]) -> list[Board]:
    """A table for each device that has records; rows in the RFC's order, then the other operators."""
    devices: dict[tuple[str, str], list[Record]] = defaultdict(list)
    known: set[str] = set()
    for record in records:
        devices[record.gpu_name, record.basis].append(record)
        known.add(record.kernel_name)
    return [_board(found, known) for found in devices.values()]


def rfc_marks() -> dict[str, tuple[bool, ...]]:
    """The RFC's own marks by row."""
    lines = resources.files(__package__).joinpath("rfc.csv").read_text().splitlines()
    table = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["kernel"]: tuple(row[column] == "1" for column in COLUMNS) for row in table}


def _board(records: Sequence[Record], known: Collection[str]) -> Board:
    first = records[0]
    rfc = rfc_marks()
    kernels = dict.fromkeys([*rfc, *(record.kernel_name for record in records)])
    tokens = sorted({x for record in records for x in record.x_values}, key=float)
    models = ", ".join(dict.fromkeys(record.model or "" for record in records))
    stack = ("torch", "triton", "triton_ascend", "ascendnpu_ir", "liger_kernel", "cann")
    return Board(
        device=first.gpu_name,
        basis=first.basis,
        roof=f"{(first.roof_bytes_per_second or 0) / 1e9:.0f} GB/s, {first.roof_source}",
        sizes=f"{models}, {first.dtype}, {tokens[0]:g} to {tokens[-1]:g} tokens" if tokens else models,
        stack=", ".join(f"{name.replace('_', '-')} {first.environment[name]}" for name in stack if first.environment.get(name)),
        rows=tuple(
            _row(kernel, [record for record in records if record.kernel_name == kernel], rfc.get(kernel, ()), kernel in known)
            for kernel in kernels
        ),
    )


def _row(kernel: str, records: Sequence[Record], rfc: tuple[bool, ...], known: bool) -> Row:
    if not records:  # of no provider: nobody ran this row on this device
        nothing = (Mark("none"),) * len(COLUMNS)
        return Row(kernel, nothing, nothing, rfc, "not run on this device" if known else "not in the repository yet")
    ours = [record for record in records if record.kernel_provider == "ours"]
    without = [record for record in ours if record.verified is False]
    if without or not ours:
        raised = not ours or any((record.verified_by or {}).get("how") == RAISED for record in without)
        marks = (Mark("failed" if raised else "refused"),) * len(COLUMNS)
        return Row(kernel, marks, marks, rfc)
    eager, liger = (tuple(_mark(records, peer, column) for column in COLUMNS) for peer in ("eager", "liger"))
    return Row(kernel, eager, liger, rfc)


def _mark(records: Sequence[Record], peer: str, column: str) -> Mark:
    """Theirs over ours at its worst; an operator without gradients has a forward of one kind only."""
    metric = "memory" if column == "memory" else "speed"
    modes = ("full", "no-grad-forward") if column == "memory" else (column, "no-grad-forward") if column == "forward" else (column,)
    for mode in modes:
        found = [record for record in records if record.kernel_operation_mode == mode and record.metric_name == metric]
        ours, theirs = _by_size(found, "ours"), _by_size(found, peer)
        shared = ours.keys() & theirs.keys()
        if not shared:
            continue
        ratio = min(theirs[size].median / ours[size].median for size in shared if ours[size].median)
        # Equal memory is no loss; the RFC asks for a speedup above 1.
        if ratio > 1 or (ratio == 1 and metric == "memory"):
            return Mark("pass", ratio)
        single = 2 if mode == "full" else 1
        alone = peer == "eager" and all(cell.record.basis == "modelled" and cell.record.launches == single for cell in theirs.values())
        return Mark("level" if alone and metric == "speed" and ratio >= _LEVEL else "fail", ratio)
    return Mark("none")


def _by_size(records: Sequence[Record], provider: str) -> dict[tuple[str, object], Cell]:
    return {(cell.record.model or "", cell.x): cell for cell in cells(record for record in records if record.kernel_provider == provider)}
