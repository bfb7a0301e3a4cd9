"""The time line as a Chrome/Perfetto trace and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .timeline import Slice

if TYPE_CHECKING:
    from .costs import Ceiling
    from .kernel import EmulatedLaunch

_PIPES = ("S", "V", "MTE2", "MTE3")
_LABELS = {"S": "scalar accesses", "V": "vector", "MTE2": "MTE2, GM to UB", "MTE3": "MTE3, UB to GM"}
_COLOURS = {"S": "#8c6d31", "V": "#3b6fb6", "MTE2": "#3a923a", "MTE3": "#c44e52"}
# A picture shows the program up to the end of this many stores: the first tiles.
_STORES = 4


def write_trace(path: Path, launches: Sequence[EmulatedLaunch], ceiling: Ceiling) -> None:
    """Write a trace for ui.perfetto.dev or chrome://tracing: a process per launch, a thread per pipe of its slowest core.

    Times are modelled microseconds from the start of the program. Of a long loop the sampled trips are shown; the gap before the
    last ones is the time of those between.
    """
    events: list[dict[str, Any]] = []
    for process, launch in enumerate(launches):
        timing, program = launch.timing(ceiling), launch.detail(ceiling)
        label = f"{process}: {launch.name} {timing.grid} on {timing.soc}, modelled, ceiling {ceiling}"
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": label}})
        for thread, pipe in enumerate(_PIPES):
            events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": _LABELS[pipe]}})
        microsecond = launch.soc.clock_hz * 1e-6
        for part in program.slices:
            events.append(
                {
                    "ph": "X",
                    "name": part.name,
                    "cat": part.pipe,
                    "pid": process,
                    "tid": _PIPES.index(part.pipe),
                    "ts": part.start / microsecond,
                    "dur": (part.end - part.start) / microsecond,
                    "args": {"line": part.where},
                }
            )
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}) + "\n")


def write_png(path: Path, launches: Sequence[EmulatedLaunch], ceiling: Ceiling) -> None:
    """Draw the pipes of each launch's slowest core over its first tiles; the source line stands in each wide enough bar."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 0.6 + 2.2 * len(launches)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, launch in zip(figure.subplots(len(launches), squeeze=False)[:, 0], launches, strict=True):
        timing = launch.timing(ceiling)
        slices = _first_tiles(launch.detail(ceiling).slices)
        microsecond = launch.soc.clock_hz * 1e-6
        end = max((part.end for part in slices), default=1.0) / microsecond
        for row, pipe in enumerate(reversed(_PIPES)):
            bars = [(part.start / microsecond, (part.end - part.start) / microsecond) for part in slices if part.pipe == pipe]
            axes.broken_barh(bars, (row - 0.4, 0.8), color=_COLOURS[pipe], edgecolor="white", linewidth=0.3)
            for part, (start, width) in zip((part for part in slices if part.pipe == pipe), bars, strict=True):
                if width > end / 25:
                    line = part.where.rpartition(":")[2]
                    axes.text(
                        start + width / 2, row, f"{part.name} :{line}", ha="center", va="center", color="white", fontsize=6, clip_on=True
                    )
        axes.set_yticks(range(len(_PIPES)), [_LABELS[pipe] for pipe in reversed(_PIPES)], fontsize=7)
        axes.set_xlim(0, end)
        axes.set_xlabel("modelled us from the start of the program", fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_title(
            f"{launch.name} on {timing.soc}: {timing.seconds * 1e6:.1f} us modelled, ceiling {ceiling}, bound by {timing.bound}", fontsize=8
        )
    figure.savefig(path, dpi=130)


def _first_tiles(slices: Sequence[Slice]) -> list[Slice]:
    ends = sorted(part.end for part in slices if part.pipe == "MTE3")
    if len(ends) <= _STORES:
        return list(slices)
    return [part for part in slices if part.start < ends[_STORES - 1]]
