"""Two runs side by side: better, worse, or within the noise."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from .records import Cell, Record, cells

# Below this share a change is not worth a word, however small the spread: clocks drift by as much; the model is exact.
_PRACTICAL = {"measured": 0.02, "modelled": 0.001}


@dataclass(frozen=True)
class Change:
    """One figure in both runs.

    Attributes:
        before, after: the figure, from 20th to 80th percentile, over all rounds.
        verdict: "better" or "worse" when the ranges do not touch and the medians differ by more than clocks drift, else "noise".
    """

    before: Cell
    after: Cell
    verdict: str

    @property
    def ratio(self) -> float:
        return self.after.median / self.before.median if self.before.median else 1.0


def compare(before: Iterable[Record], after: Iterable[Record]) -> list[Change]:
    """What both runs have; each may hold several rounds of the same figures."""
    old, new = _pooled(before), _pooled(after)
    return [Change(old[key], new[key], _verdict(old[key], new[key])) for key in old if key in new]


def _verdict(before: Cell, after: Cell) -> str:
    least = _PRACTICAL[before.record.basis]
    if after.high < before.low and after.median < before.median * (1 - least):
        return "better"
    if after.low > before.high and after.median > before.median * (1 + least):
        return "worse"
    return "noise"


def _pooled(records: Iterable[Record]) -> dict[tuple[object, ...], Cell]:
    """Each figure once: the median of the rounds, and a range that holds their medians too."""
    rounds: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in cells(records):
        rounds[cell.key].append(cell)
    return {key: _merge(found) for key, found in rounds.items()}


def _merge(found: Sequence[Cell]) -> Cell:
    medians = [cell.median for cell in found]
    low = min(*medians, statistics.median(cell.low for cell in found))
    high = max(*medians, statistics.median(cell.high for cell in found))
    first = found[-1]
    beside = (first.bytes, first.roof_share, first.own_roof_share, first.bound)
    return Cell(first.record, first.x, statistics.median(medians), low, high, *beside)


def table(changes: Sequence[Change], names: tuple[str, str]) -> Table:
    """All changes, with both ranges."""
    shown = Table("kernel", "provider", "model", "x", "pass", "figure", *names, "change", "verdict")
    for column in shown.columns[6:9]:
        column.justify = "right"
    places = dict.fromkeys(f"{change.after.record.basis} on {change.after.record.gpu_name}" for change in changes)
    shown.title = ", ".join(places)
    shown.caption = "median [20 % – 80 %]. noise: the ranges touch, or the medians differ by no more than clocks drift"
    for change in changes:
        record = change.after.record
        x = change.after.x if isinstance(change.after.x, str) else f"{change.after.x:g}"
        what = record.kernel_name, record.kernel_provider, record.model or "", x
        figure = f"{record.metric_name}, {record.metric_unit}"
        style = {"better": "green", "worse": "red", "noise": "dim"}[change.verdict]
        shown.add_row(
            *what, record.kernel_operation_mode, figure, _range(change.before), _range(change.after), f"{100 * (change.ratio - 1):+.1f} %",
            Text(change.verdict, style),
        )  # fmt: skip
    return shown


def _range(cell: Cell) -> str:
    spread = f" [{cell.low:.4g}–{cell.high:.4g}]" if cell.high > cell.low else ""
    return f"{cell.median:.4g}{spread}"
