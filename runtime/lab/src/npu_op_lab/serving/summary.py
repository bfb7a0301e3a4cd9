"""The figures of a serving run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .records import Request

STATISTICS = ("Average", "Min", "Max", "Median", "P75", "P90", "P99")
# Rows and their units; lower is better in the latencies.
LATENCIES = ("E2EL", "TTFT", "TPOT", "ITL")
UNITS = {**dict.fromkeys(LATENCIES, "ms"), "InputTokens": "tokens", "OutputTokens": "tokens", "OutputTokenThroughput": "tokens/s"}


@dataclass(frozen=True)
class Metric:
    """One row: its statistics by name, none where nothing was observed, and the number of values."""

    name: str
    statistics: Mapping[str, float]
    count: int


@dataclass(frozen=True)
class Common:
    """One figure of the run as a whole."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Summary:
    """A run: its rows and its common figures, in the order in which they are shown."""

    metrics: tuple[Metric, ...]
    common: tuple[Common, ...]


def summarise(requests: Sequence[Request]) -> Summary:
    """The figures of at least one request.

    E2EL is from sending a request to its end, TTFT to its first chunk. TPOT is the time from the first chunk to the last over the tokens
    after the first, one value for each request of more than one token. ITL is the time between two chunks, one value for each pair of
    neighbours of all requests. Failed requests count in none of them.
    """
    good = [request for request in requests if not request.error]
    values: dict[str, Iterable[float]] = {
        "E2EL": ((r.end - r.start) * 1e3 for r in good),
        "TTFT": ((r.arrivals[0] - r.start) * 1e3 for r in good),
        "TPOT": ((r.arrivals[-1] - r.arrivals[0]) * 1e3 / (r.output_tokens - 1) for r in good if len(r.arrivals) > 1),
        "ITL": ((after - before) * 1e3 for r in good for before, after in pairwise(r.arrivals)),
        "InputTokens": (r.input_tokens for r in good),
        "OutputTokens": (r.output_tokens for r in good),
        "OutputTokenThroughput": (r.output_tokens / (r.end - r.start) for r in good if r.end > r.start),
    }
    return Summary(tuple(_metric(name, list(found)) for name, found in values.items()), tuple(_common(requests, good)))


def _metric(name: str, values: list[float]) -> Metric:
    if not values:
        return Metric(name, {}, 0)
    # Between two observations a percentile is interpolated linearly, as NumPy does by default.
    median, p75, p90, p99 = np.percentile(values, (50, 75, 90, 99))
    figures = (np.mean(values), min(values), max(values), median, p75, p90, p99)
    return Metric(name, dict(zip(STATISTICS, map(float, figures), strict=True)), len(values))


def _common(requests: Sequence[Request], good: Sequence[Request]) -> list[Common]:
    duration = max(request.end for request in requests) - min(request.start for request in requests)
    inputs, outputs = sum(request.input_tokens for request in good), sum(request.output_tokens for request in good)

    def per_second(amount: float) -> float:
        return amount / duration if duration else float("nan")

    return [
        Common("Benchmark Duration", duration, "s"),
        Common("Total Requests", len(requests), ""),
        Common("Failed Requests", len(requests) - len(good), ""),
        Common("Success Requests", len(good), ""),
        Common("Concurrency", per_second(sum(request.end - request.start for request in requests)), ""),
        Common("Max Concurrency", _most_at_once(requests), ""),
        Common("Request Throughput", per_second(len(good)), "requests/s"),
        Common("Total Input Tokens", inputs, "tokens"),
        Common("Total Generated Tokens", outputs, "tokens"),
        Common("Input Token Throughput", per_second(inputs), "tokens/s"),
        Common("Output Token Throughput", per_second(outputs), "tokens/s"),
        Common("Total Token Throughput", per_second(inputs + outputs), "tokens/s"),
    ]


def _most_at_once(requests: Sequence[Request]) -> int:
    """A request that ends when another starts is not beside it."""
    steps = sorted([(request.start, 1) for request in requests] + [(request.end, -1) for request in requests])
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most
