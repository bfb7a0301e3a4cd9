"""Reads the CSV of Liger-Kernel's benchmarks as records, so that its figures can be compared and drawn beside ours."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from .records import BadRecords, Record

COLUMNS = (
    "kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name", "x_label", "x_value",
    "y_value_50", "y_value_20", "y_value_80", "extra_benchmark_config_str", "gpu_name", "timestamp", "liger_version",
)  # fmt: skip
_SWEEP = ("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "x_name", "extra_benchmark_config_str", "gpu_name")


def read_liger(file: Path) -> list[Record]:
    """The rows of a CSV, one record for each sweep. Nothing says that they were verified, nor what the device's roof is.

    Raises:
        BadRecords: no such file, a column is missing, or a figure is no number.
    """
    try:
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecords(f"{file}: {error}") from None
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise BadRecords(f"{file}: Liger's CSV has the columns {', '.join(COLUMNS)}; missing here: {', '.join(missing)}")
    sweeps: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        sweeps[tuple(row[name] for name in _SWEEP)].append(row)
    found = []
    for sweep in sweeps.values():
        try:
            found.append(_record(sweep))
        except ValueError as error:
            raise BadRecords(f"{file}: {sweep[0]['kernel_name']} by {sweep[0]['kernel_provider']}: {error}") from None
    return found


def _record(rows: list[dict[str, str]]) -> Record:
    rows = sorted(rows, key=lambda row: float(row["x_value"]))
    first = rows[0]
    config = _config(first["extra_benchmark_config_str"])
    return Record(
        kernel_name=first["kernel_name"],
        kernel_provider=first["kernel_provider"],
        kernel_operation_mode=first["kernel_operation_mode"],
        metric_name=first["metric_name"],
        metric_unit=first["metric_unit"],
        gpu_name=first["gpu_name"],
        x_name=first["x_name"],
        x_label=first["x_label"],
        x_values=[float(row["x_value"]) for row in rows],
        y_values_50=[float(row["y_value_50"]) for row in rows],
        y_values_20=[float(row["y_value_20"]) for row in rows],
        y_values_80=[float(row["y_value_80"]) for row in rows],
        timestamp=first["timestamp"],
        extra_benchmark_config_str=first["extra_benchmark_config_str"],
        liger_version=first["liger_version"] or None,
        operator=first["kernel_name"],
        model=config.get("model_name"),
        dtype=str(config["dtype"]).removeprefix("torch.") if "dtype" in config else None,
        basis="measured",
        soc=first["gpu_name"] if first["gpu_name"].startswith("Ascend") else None,
        roof_bytes_per_second=None,
        roof_source=None,
        bytes=None,
        roof_share=None,
        own_roof_share=None,
        bound=None,
        verified=None,
        verified_by=None,
        samples=None,
        launches=None,
        kernels=None,
    )


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return config if isinstance(config, dict) else {}
