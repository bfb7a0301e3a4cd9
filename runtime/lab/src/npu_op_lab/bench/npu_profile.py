"""Time that an NPU spends in the kernels of a call, by torch_npu's profiler.

triton-ascend's `do_bench_npu` reads one row of `op_statistic.csv`; a call of several kernels, or of a kernel named like the
benchmark's own clearing of L2, is then measured wrong. Here every row of `kernel_details.csv` counts.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def device_times(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Device ms of each call, its kernels added up; the gaps between them are no part of it.

    Raises:
        RuntimeError: the profiler wrote no kernel_details.csv.
        ValueError: the calls did not launch the same kernels.
    """
    import torch
    import torch_npu

    profiler = torch_npu.profiler
    config = profiler._ExperimentalConfig(profiler_level=profiler.ProfilerLevel.Level1, aic_metrics=profiler.AiCMetrics.PipeUtilization)
    with tempfile.TemporaryDirectory() as folder:
        with profiler.profile(
            activities=[profiler.ProfilerActivity.NPU],
            on_trace_ready=profiler.tensorboard_trace_handler(folder),
            experimental_config=config,
        ):
            for call in calls:
                call()
            torch.npu.synchronize()  # type: ignore[attr-defined]  # added by torch_npu
        found = sorted(Path(folder).rglob("kernel_details.csv"))
        if not found:
            raise RuntimeError(f"torch_npu's profiler wrote no kernel_details.csv below {folder}")
        return per_call(found[0].read_text(), len(calls))


def per_call(kernel_details: str, calls: int) -> list[float]:
    """Device ms of each of `calls` equal calls, from the text of a kernel_details.csv.

    Raises:
        ValueError: a column is missing, or the kernels, in the order of their start, are not `calls` times the same sequence.
    """
    rows = list(csv.DictReader(kernel_details.splitlines(), skipinitialspace=True))
    missing = [name for name in ("Name", "Start Time(us)", "Duration(us)") if not rows or name not in rows[0]]
    if missing:
        raise ValueError(f"kernel_details.csv must have rows with the columns {', '.join(missing)}")
    rows.sort(key=lambda row: float(row["Start Time(us)"]))
    each, rest = divmod(len(rows), calls)
    groups = [rows[index * each : (index + 1) * each] for index in range(calls)]
    if rest or any([row["Name"] for row in group] != [row["Name"] for row in groups[0]] for group in groups):
        names = ", ".join(dict.fromkeys(row["Name"] for row in rows))
        raise ValueError(f"kernel_details.csv must hold {calls} times the same kernels (got {len(rows)} rows of {names})")
    return [sum(float(row["Duration(us)"]) for row in group) * 1e-3 for group in groups]
