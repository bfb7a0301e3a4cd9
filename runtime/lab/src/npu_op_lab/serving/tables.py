"""Tables of a serving run, in the shape that AISBench and vLLM users know, and of the change between two."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from .summary import LATENCIES, STATISTICS, UNITS, Summary

_COMPARED = ("Average", "Median", "P90", "P99")


def summary_tables(title: str, summary: Summary) -> Iterator[Table]:
    """Performance parameters by percentile, and the common metrics."""
    table = Table(title=f"{title}: performance parameters")
    table.add_column("Performance Parameter")
    for column in (*STATISTICS, "N"):
        table.add_column(column, justify="right")
    for metric in summary.metrics:
        unit = UNITS[metric.name]
        cells = (f"{metric.statistics[name]:.4g} {unit}" if metric.count else "–" for name in STATISTICS)
        table.add_row(metric.name, *cells, str(metric.count))
    yield table
    common = Table(title=f"{title}: common metrics")
    common.add_column("Common Metric")
    common.add_column("Value", justify="right")
    for figure in summary.common:
        common.add_row(figure.name, f"{_number(figure.value)} {figure.unit}".rstrip())
    yield common


def change_tables(before: Summary, after: Summary) -> Iterator[Table]:
    """After against before: each figure and its change; a latency that fell and a throughput that rose are better."""
    table = Table(title="Change of the performance parameters (after, change)")
    table.add_column("Performance Parameter")
    for column in _COMPARED:
        table.add_column(column, justify="right")
    for old, new in zip(before.metrics, after.metrics, strict=True):
        if old.count and new.count:
            cells = (_change(old.statistics[name], new.statistics[name], old.name in LATENCIES) for name in _COMPARED)
            table.add_row(f"{old.name}, {UNITS[old.name]}", *cells)
    yield table
    common = Table(title="Change of the common metrics")
    for column in ("Common Metric", "Before", "After, change"):
        common.add_column(column, justify="left" if column == "Common Metric" else "right")
    for was, now in zip(before.common, after.common, strict=True):
        common.add_row(was.name, _number(was.value), _change(was.value, now.value, lower_is_better=now.name == "Benchmark Duration"))
    yield common


def _change(before: float, after: float, lower_is_better: bool) -> str:
    if not before:
        return _number(after)
    share = after / before - 1
    better = share < 0 if lower_is_better else share > 0
    colour = "green" if better else "red"
    return f"{_number(after)} ([{colour}]{share:+.1%}[/{colour}])" if abs(share) >= 5e-4 else f"{_number(after)} (=)"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
