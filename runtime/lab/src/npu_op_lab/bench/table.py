"""Records as tables for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from .points import MODES, PROVIDERS
from .records import Cell, Record, cells


def tables(records: Iterable[Record]) -> Iterator[Table]:
    """For every device and kernel: what the compiler made of it (modelled), times, memory."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.gpu_name, record.kernel_name].append(record)
    for group in groups.values():
        if any(record.kernels for record in group):
            yield _compiled(group)
        yield _times(group)
        for metric, title in (("device_time", "device time of all kernels of a call, ms"), ("host_time", "host time of a call, µs")):
            if any(record.metric_name == metric for record in group):
                yield _plain(group, metric, title)


def violations(records: Iterable[Record]) -> list[str]:
    """What the compile gate says of our kernels, each once."""
    ours = (kernel for record in records if record.kernel_provider == "ours" for kernel in record.kernels or ())
    return list(dict.fromkeys(violation for kernel in ours for violation in kernel["violations"]))


def _title(group: list[Record], what: str) -> str:
    return f"{group[0].kernel_name}, {group[0].dtype}: {what}"


def _compiled(group: list[Record]) -> Table:
    """One row for each kernel of ours, per model: facts of the compiled IR."""
    table = Table(
        "model", "pass", "kernel", "UB KiB", "UB %", "double-buffered", "DMA in KiB", "DMA out KiB", "vector ops", "scalar loops", "gate"
    )
    table.title = _title(group, f"compiled for {group[0].gpu_name}; per trip of the hot loop, nothing executed")
    shown = set()
    for record in group:
        if record.kernel_provider != "ours" or record.kernel_operation_mode not in ("forward", "backward"):
            continue
        for kernel in record.kernels or ():
            row = record.model, record.kernel_operation_mode, kernel["name"]
            if row in shown:
                continue
            shown.add(row)
            table.add_row(
                *map(str, row),
                f"{kernel['ub_bytes'] / 1024:.1f}",
                f"{100 * kernel['ub_share']:.0f}",
                "yes" if kernel["double_buffered"] else "no",
                f"{kernel['bytes_in'] / 1024:.1f}",
                f"{kernel['bytes_out'] / 1024:.1f}",
                str(kernel["vector_ops"]),
                str(kernel["scalar_loops"]),
                Text(f"{len(kernel['violations'])} violations", "red") if kernel["violations"] else Text("passes", "green"),
            )
    return table


def _times(group: list[Record]) -> Table:
    """A row for each model, number of tokens and mode; the others' times with how many times ours goes into them."""
    speeds, memory = _by_row(group, "speed"), _by_row(group, "memory")
    present = [name for name in PROVIDERS if any(record.kernel_provider == name for record in group)]
    modelled = group[0].basis == "modelled"
    columns = ["model", "tokens", "pass", *(f"{name} ms" for name in present), "roof %", *(["bound by"] if modelled else [])]
    table = Table(*columns, *(f"{name} MB" for name in present))
    for column in table.columns[1:]:
        column.justify = "right"
    table.title = _title(group, f"{group[0].basis} on {group[0].gpu_name}")
    table.caption = (
        f"(…×): times our time, or our memory. roof: least bytes at {(group[0].roof_bytes_per_second or 0) / 1e9:.0f} GB/s "
        f"({group[0].roof_source}) over our time."
        + (" Times include a launch cost; eager is modelled at full bandwidth." if modelled else " [20 % – 80 %]")
    )
    last = None
    models = list(dict.fromkeys(model for model, _, _ in speeds))
    for row in sorted(speeds, key=lambda key: (models.index(key[0]), key[1], MODES.index(key[2]))):
        if last is not None and row[:1] != last[:1]:
            table.add_section()
        found = speeds[row]
        ours = found.get("ours")
        shares = [f"{100 * ours.roof_share:.0f}" if ours and ours.roof_share else ""]
        if modelled:
            shares.append(f"{ours.bound} {100 * (ours.own_roof_share or 0):.0f} %" if ours and ours.bound else "")
        label = ["" if last and row[0] == last[0] else row[0], "" if last and row[:2] == last[:2] else f"{row[1]}", row[2]]
        table.add_row(*label, *(_against(found.get(name), ours, "{:.4g}", not modelled) for name in present), *shares,
                      *(_against(memory[row].get(name), memory[row].get("ours"), "{:.0f}", False) for name in present))  # fmt: skip
        last = row
    return table


def _plain(group: list[Record], metric: str, title: str) -> Table:
    rows = _by_row(group, metric)
    present = [name for name in PROVIDERS if any(name in found for found in rows.values())]
    table = Table("model", "tokens", "pass", *present, title=_title(group, f"{title}, {group[0].basis} on {group[0].gpu_name}"))
    for row, found in rows.items():
        table.add_row(row[0], str(row[1]), row[2], *(_against(found.get(name), found.get("ours"), "{:.4g}", True) for name in present))
    return table


def _by_row(group: list[Record], metric: str) -> dict[tuple[Any, ...], dict[str, Cell]]:
    rows: dict[tuple[Any, ...], dict[str, Cell]] = defaultdict(dict)
    for cell in cells(record for record in group if record.metric_name == metric):
        rows[cell.record.model or "", cell.x, cell.record.kernel_operation_mode][cell.record.kernel_provider] = cell
    return rows


def _against(cell: Cell | None, ours: Cell | None, form: str, spread: bool) -> Text:
    if cell is None:
        return Text("–")
    text = Text(form.format(cell.median))
    if spread:
        text.append(f" [{form.format(cell.low)}–{form.format(cell.high)}]", "dim")
    if ours and cell is not ours and ours.median:
        ratio = cell.median / ours.median
        text.append(f" ({ratio:.2f}×)", "green" if ratio > 1 else "red" if ratio < 1 else "")
    return text
