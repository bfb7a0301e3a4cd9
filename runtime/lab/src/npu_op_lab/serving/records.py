"""Reads request records: JSON lines, one request each, in the form of request.schema.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..json_lines import BadLines, records_of


class BadRequests(ValueError):
    """A file that holds no request records, or a wrong one; says which line and what is wrong with it."""


@dataclass(frozen=True)
class Request:
    """One request; times in seconds of one clock. A failed one has an error and counts in no latency."""

    start: float
    end: float
    arrivals: tuple[float, ...]
    input_tokens: int
    output_tokens: int
    error: str = ""


def read(file: Path) -> list[Request]:
    """The requests of a file, in its order; empty lines are skipped.

    Raises:
        BadRequests: the file cannot be read, holds no record, or one that is not as the schema says.
    """
    schema = json.loads(resources.files(__package__).joinpath("request.schema.json").read_text())
    try:
        return [_request(where, record) for where, record in records_of(file, schema)]
    except BadLines as error:
        raise BadRequests(str(error)) from None


def _request(where: str, record: dict[str, Any]) -> Request:
    problem = next(_problems(record), None)
    if problem:
        raise BadRequests(f"{where}: {problem}")
    arrivals = tuple(record.get("arrivals", ()))
    return Request(
        start=record["start"],
        end=record.get("end", arrivals[-1] if arrivals else record["start"]),
        arrivals=arrivals,
        input_tokens=record["input_tokens"],
        output_tokens=record.get("output_tokens", len(arrivals)),
        error=record.get("error", ""),
    )


def _problems(record: dict[str, Any]) -> Iterator[str]:
    """What no schema can say: of times that run backwards, of tokens that do not add up."""
    arrivals = record.get("arrivals", [])
    if not all(map(math.isfinite, (record["start"], record.get("end", 0.0), *arrivals))):
        yield "times must be finite"
    if not arrivals and "error" not in record:
        yield "arrivals must not be empty where there is no error"
    times = [record["start"], *arrivals, *([record["end"]] if "end" in record else [])]
    for before, after in pairwise(times):
        if after < before:
            yield f"start, arrivals and end must not run backwards (got {after} after {before})"
    if record.get("output_tokens", len(arrivals)) < len(arrivals):
        yield f"output_tokens must be at least the number of arrivals, {len(arrivals)} (got {record['output_tokens']})"
