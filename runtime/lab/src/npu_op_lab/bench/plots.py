"""Records as pictures: how close each provider comes to the roof, and what memory it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .points import PROVIDERS
from .records import Cell, Record, cells

# Okabe-Ito: told apart by colour-blind readers too.
_COLOURS = {"ours": "#D55E00", "eager": "#0072B2", "compile": "#009E73", "vendor": "#CC79A7", "liger": "#E69F00"}
_MARKS = {"ours": "o", "eager": "s", "compile": "^", "vendor": "D", "liger": "v"}
_OTHER = "#555555"
_PANELS = (("forward", "speed"), ("backward", "speed"), ("full", "speed"), ("full", "memory"))

Panel = dict[str, list[Cell]]


def plot(records: Iterable[Record], stem: Path) -> list[Path]:
    """One PNG for each device and kernel, `<stem>-<kernel>-<device>.png`: a column for each model, or bars by model where x is one number.

    Speed is drawn as least bytes over time, in GB/s, median and 20th to 80th percentile, with the roof as a line; memory as the peak.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.kernel_name, record.gpu_name].append(record)
    return [
        _draw(group, stem.with_name(f"{stem.name}-{kernel}-{device}.png".replace(" ", "_"))) for (kernel, device), group in groups.items()
    ]


def _draw(group: list[Record], file: Path) -> Path:
    found: dict[tuple[str, str, str], Panel] = defaultdict(lambda: defaultdict(list))
    for cell in cells(group):
        record = cell.record
        found[record.model or "", record.kernel_operation_mode, record.metric_name][record.kernel_provider].append(cell)
    rows = [panel for panel in _PANELS if any((mode, metric) == panel for _, mode, metric in found)]
    models = list(dict.fromkeys(model for model, _, _ in found))
    points = max(len(line) for panel in found.values() for line in panel.values())
    columns = models if points > 1 else [""]
    figure = Figure(figsize=(max(3.4 * len(columns), 7.0) + 0.6, 2.3 * len(rows) + 1.3), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row")
    for line, (mode, metric) in zip(axes, rows, strict=True):
        for axis, model in zip(line, columns, strict=True):
            if points > 1:
                _lines(axis, found[model, mode, metric], metric)
            else:
                _bars(axis, {name: found[name, mode, metric] for name in models}, metric)
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylim(0, 1.06 * max(axis.dataLim.ymax for axis in line))
        line[0].set_ylabel(f"{mode}\nGB/s" if metric == "speed" else f"{mode}\npeak memory, MB")
    if points > 1:
        for axis, model in zip(axes[0], columns, strict=True):
            axis.set_title(model, fontsize=11)
        for axis in axes[-1]:
            axis.set_xlabel(group[0].x_label)
    _title(figure, group)
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    return file


def _title(figure: Figure, group: list[Record]) -> None:
    first = group[0]
    lines = [
        f"{first.kernel_name}, {first.dtype or 'dtype not recorded'}, {first.basis} on {first.gpu_name}",
        "least bytes over time: higher is better; peak memory: lower is better",
    ]
    if first.roof_bytes_per_second:
        lines.append(f"roof {first.roof_bytes_per_second / 1e9:.0f} GB/s: {first.roof_source}")
    figure.suptitle("\n".join(lines), fontsize=10)


def _lines(axis: Axes, panel: Panel, metric: str) -> None:
    # Ours last, on top of the others.
    for name in [name for name in (*PROVIDERS[1:], *sorted(set(panel) - set(PROVIDERS)), "ours") if name in panel]:
        x = [float(cell.x) for cell in panel[name]]
        middle, spread = _heights(panel[name], metric)
        axis.errorbar(
            x,
            middle,
            yerr=spread,
            label=name,
            color=_COLOURS.get(name, _OTHER),
            marker=_MARKS.get(name, "x"),
            markersize=4,
            linewidth=2.2 if name == "ours" else 1.3,
            capsize=2,
        )
    axis.set_xscale("log", base=2)
    ticks = sorted({float(cell.x) for line in panel.values() for cell in line})
    axis.set_xticks(ticks, [f"{tick / 1024:g}k" if tick % 1024 == 0 else f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    _roof(axis, panel, metric)


def _bars(axis: Axes, panels: dict[str, Panel], metric: str) -> None:
    names = [name for name in PROVIDERS if any(name in panel for panel in panels.values())]
    width = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        shown = [(at, panel[name]) for at, panel in enumerate(panels.values()) if name in panel]
        found = [_heights(line, metric) for _, line in shown]
        axis.bar(
            [at + (place - (len(names) - 1) / 2) * width for at, _ in shown],
            [middle[0] for middle, _ in found],
            width,
            yerr=[[spread[0][0] for _, spread in found], [spread[1][0] for _, spread in found]],
            label=name,
            color=_COLOURS.get(name, _OTHER),
            capsize=2,
        )
    axis.set_xticks(range(len(panels)), list(panels))
    for panel in panels.values():
        _roof(axis, panel, metric)


def _heights(line: Sequence[Cell], metric: str) -> tuple[list[float], list[list[float]]]:
    """Heights, and how far the bars reach below and above."""
    if metric == "memory":
        middle = [cell.median for cell in line]
        return middle, [[0.0] * len(middle), [0.0] * len(middle)]
    rates = [_rates(cell) for cell in line]
    return [rate for rate, _, _ in rates], [[rate - low for rate, low, _ in rates], [high - rate for rate, _, high in rates]]


def _rates(cell: Cell) -> tuple[float, float, float]:
    """GB/s at the median, at the 80th and at the 20th percentile of the time."""
    return tuple((cell.bytes or 0) / (time * 1e-3) / 1e9 for time in (cell.median, cell.high, cell.low))  # type: ignore[return-value]


def _roof(axis: Axes, panel: Panel, metric: str) -> None:
    roofs = [cell.record.roof_bytes_per_second for line in panel.values() for cell in line if cell.record.roof_bytes_per_second]
    if metric == "speed" and roofs and not any(line.get_label() == "roof" for line in axis.lines):
        axis.axhline(max(roofs) / 1e9, color="black", linestyle="--", linewidth=1, label="roof")
