"""Records of a benchmark: JSON lines, one sweep of one figure a line, described by `record.schema.json`.

The names are Liger-Kernel's where they mean the same, so that its tools read them; the rest says where a figure comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..json_lines import BadLines, records_of

SCHEMA_VERSION = 1


class BadRecords(ValueError):
    """A file that does not hold records; the message names file, line and what is wrong."""


@dataclass(frozen=True)
class Record:
    """One figure of one provider in one mode along one sweep; lists are parallel to `x_values`.

    Liger's fields keep Liger's meaning. Ours:

    Attributes:
        schema_version: of the schema.
        operator: the package, `kernel_name` being the row; model: whose sizes; dtype: of the inputs.
        basis: "measured" or "modelled"; soc: name in the SoC table, None on a GPU.
        roof_bytes_per_second, roof_source: the bandwidth that `roof_share` is a share of, and where it comes from.
        bytes: least GM bytes of each call.
        roof_share: time of those bytes at the roof over the time, of a speed; None of another metric.
        own_roof_share, bound: the emulator's, modelled speeds of compiled kernels only.
        verified: the oracle passed the provider's results in the same run. Without it there are no figures: the lists are empty.
        verified_by: where, at which size, the largest error over the allowed one, and the reason of a failure, which for ours may be
            what it raised.
        samples: calls behind each figure.
        launches: kernels that a call launches, where that is known (modelled, or an NPU's profile).
        kernels: what the vendor's compiler made of the kernels (modelled only), those of the last x.
        environment, git: stack and state of the sources; kernels_hash, model_hash: of the sources (see `sources`).
    """

    kernel_name: str
    kernel_provider: str
    kernel_operation_mode: str
    metric_name: str
    metric_unit: str
    gpu_name: str
    x_name: str
    x_label: str
    x_values: list[float | str]
    y_values_50: list[float]
    y_values_20: list[float]
    y_values_80: list[float]
    timestamp: str
    extra_benchmark_config_str: str
    liger_version: str | None
    operator: str
    model: str | None
    dtype: str | None
    basis: str
    soc: str | None
    roof_bytes_per_second: float | None
    roof_source: str | None
    bytes: list[int] | None
    roof_share: list[float] | None
    own_roof_share: list[float | None] | None
    bound: list[str | None] | None
    verified: bool | None
    verified_by: dict[str, Any] | None
    samples: int | None
    launches: int | None
    kernels: list[dict[str, Any]] | None
    environment: dict[str, Any] = field(default_factory=dict)
    git: dict[str, Any] = field(default_factory=dict)
    kernels_hash: str | None = None
    model_hash: str | None = None
    schema_version: int = SCHEMA_VERSION


def schema() -> dict[str, Any]:
    """The JSON Schema of a line."""
    loaded: dict[str, Any] = json.loads(resources.files(__package__).joinpath("record.schema.json").read_text())
    return loaded


def write(records: Iterable[Record], file: Path) -> None:
    """One line a record; the folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))


def read(file: Path) -> list[Record]:
    """The records of a file.

    Raises:
        BadRecords: no such file, no record in it, or a line that the schema refuses.
    """
    known = {name.name for name in fields(Record)}
    try:
        return [Record(**{name: value for name, value in content.items() if name in known}) for _, content in records_of(file, schema())]
    except BadLines as error:
        raise BadRecords(str(error)) from None


@dataclass(frozen=True)
class Cell:
    """One figure of a record, with what is parallel to it."""

    record: Record
    x: float | str
    median: float
    low: float
    high: float
    bytes: int | None
    roof_share: float | None
    own_roof_share: float | None
    bound: str | None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from every other figure of a run."""
        record = self.record
        what = record.kernel_name, record.model, self.x, record.kernel_operation_mode, record.metric_name
        return (record.basis, record.gpu_name, *what, record.kernel_provider)


def cells(records: Iterable[Record]) -> Iterator[Cell]:
    """Every figure, in order."""
    for record in records:
        parallel: list[Any] = [record.bytes, record.roof_share, record.own_roof_share, record.bound]
        for index, x in enumerate(record.x_values):
            figures = (record.y_values_50[index], record.y_values_20[index], record.y_values_80[index])
            yield Cell(record, x, *figures, *(values[index] if values else None for values in parallel))
