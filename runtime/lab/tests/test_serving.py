"""The serving summary: its figures against NumPy and by hand, its messages on wrong files, its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_op_lab.cli import main
from npu_op_lab.serving import BadRequests, Request, Summary, read, summarise

RECORD = {"start": 0.0, "arrivals": [1.0, 1.5], "input_tokens": 7}


def write(file: Path, *records: Any) -> Path:
    file.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return file


def run_of(seed: int, count: int = 40, speed: float = 1.0) -> list[dict[str, Any]]:
    """Requests with random chunks; every fifth fails, every seventh has one chunk, and chunks bring one or two tokens."""
    random = np.random.default_rng(seed)
    records = []
    for number in range(count):
        start = float(random.uniform(0, 10))
        chunks = 1 if number % 7 == 0 else int(random.integers(2, 30))
        arrivals = (start + np.cumsum(random.exponential(0.05 / speed, chunks))).tolist()
        record = {"start": start, "arrivals": arrivals, "input_tokens": int(random.integers(1, 999)), "output_tokens": chunks + number % 3}
        records.append({**record, "error": "timeout", "end": start + 30} if number % 5 == 4 else record)
    return records


def figures(summary: Summary, name: str) -> dict[str, float]:
    (metric,) = (metric for metric in summary.metrics if metric.name == name)
    return dict(metric.statistics)


def common(summary: Summary) -> dict[str, float]:
    return {figure.name: figure.value for figure in summary.common}


def test_figures_are_those_of_numpy(tmp_path):
    records = run_of(0)
    good = [record for record in records if "error" not in record]
    values = {
        "E2EL": [1e3 * (r["arrivals"][-1] - r["start"]) for r in good],
        "TTFT": [1e3 * (r["arrivals"][0] - r["start"]) for r in good],
        "TPOT": [1e3 * (r["arrivals"][-1] - r["arrivals"][0]) / (r["output_tokens"] - 1) for r in good if len(r["arrivals"]) > 1],
        "ITL": [1e3 * gap for r in good for gap in np.diff(r["arrivals"])],
        "InputTokens": [r["input_tokens"] for r in good],
        "OutputTokens": [r["output_tokens"] for r in good],
        "OutputTokenThroughput": [r["output_tokens"] / (r["arrivals"][-1] - r["start"]) for r in good],
    }
    summary = summarise(read(write(tmp_path / "run.jsonl", *records)))
    assert [metric.name for metric in summary.metrics] == list(values)
    for metric in summary.metrics:
        array = np.asarray(values[metric.name], dtype=float)
        assert metric.count == len(array)
        wanted = [array.mean(), array.min(), array.max(), *(np.quantile(array, share) for share in (0.5, 0.75, 0.9, 0.99))]
        assert list(metric.statistics.values()) == pytest.approx(wanted, rel=1e-12)


def test_figures_by_hand(tmp_path):
    """Two requests side by side and one that failed; the second brings three tokens in two chunks."""
    file = write(
        tmp_path / "run.jsonl",
        {"start": 0.0, "arrivals": [1.0, 2.0, 4.0], "input_tokens": 10, "end": 4.5},
        "",
        {"start": 1.0, "arrivals": [1.5, 2.5], "input_tokens": 20, "output_tokens": 3},
        {"start": 2.5, "input_tokens": 5, "end": 5.0, "error": "refused"},
    )
    summary = summarise(read(file))
    assert figures(summary, "E2EL") == {
        "Average": 3000, "Min": 1500, "Max": 4500, "Median": 3000, "P75": 3750, "P90": 4200, "P99": 4470,
    }  # fmt: skip
    assert figures(summary, "TTFT")["Average"] == 750
    assert figures(summary, "TPOT") == pytest.approx({**figures(summary, "TPOT"), "Min": 500, "Max": 1500})
    assert figures(summary, "ITL")["Median"] == 1000
    assert common(summary) == pytest.approx(
        {
            "Benchmark Duration": 5.0, "Total Requests": 3, "Failed Requests": 1, "Success Requests": 2,
            "Concurrency": (4.5 + 1.5 + 2.5) / 5, "Max Concurrency": 2, "Request Throughput": 0.4,
            "Total Input Tokens": 30, "Total Generated Tokens": 6,
            "Input Token Throughput": 6.0, "Output Token Throughput": 1.2, "Total Token Throughput": 7.2,
        }
    )  # fmt: skip


def test_one_chunk_has_no_time_between_tokens():
    summary = summarise([Request(0.0, 1.0, (1.0,), 4, 1)])
    assert figures(summary, "TTFT")["P99"] == 1000
    assert figures(summary, "TPOT") == figures(summary, "ITL") == {}


def test_a_run_in_which_all_failed_has_counts_and_no_latencies():
    summary = summarise([Request(0.0, 2.0, (), 4, 0, "timeout")])
    assert all(metric.count == 0 for metric in summary.metrics)
    assert common(summary)["Failed Requests"] == 1
    assert common(summary)["Output Token Throughput"] == 0


def test_a_run_of_no_duration_has_no_throughput():
    assert np.isnan(common(summarise([Request(1.0, 1.0, (1.0,), 4, 1)]))["Output Token Throughput"])


@pytest.mark.parametrize(
    ("line", "message"),
    (
        ("{", "must be JSON"),
        ("[1]", "record: .* is not of type 'object'"),
        ({"arrivals": [1.0], "input_tokens": 7}, "record: 'start' is a required property"),
        ({"start": 0.0, "arrivals": [1.0]}, "record: 'input_tokens' is a required property"),
        ({**RECORD, "start": "now"}, "start: 'now' is not of type 'number'"),
        ({**RECORD, "arrivals": [1.0, None]}, "arrivals.1: None is not of type 'number'"),
        ({**RECORD, "input_tokens": -1}, "input_tokens: -1 is less than the minimum of 0"),
        ({**RECORD, "input_tokens": True}, "input_tokens: True is not of type 'integer'"),
        ({**RECORD, "arrivals": []}, "arrivals must not be empty where there is no error"),
        ({**RECORD, "arrivals": [1.5, 1.0]}, r"must not run backwards \(got 1.0 after 1.5\)"),
        ({**RECORD, "start": 1.25}, r"must not run backwards \(got 1.0 after 1.25\)"),
        ({**RECORD, "end": 1.25}, r"must not run backwards \(got 1.25 after 1.5\)"),
        ({**RECORD, "output_tokens": 1}, r"output_tokens must be at least the number of arrivals, 2 \(got 1\)"),
        ('{"start": NaN, "arrivals": [1.0], "input_tokens": 7}', "times must be finite"),
        ('{"start": 0.0, "arrivals": [1e999], "input_tokens": 7}', "times must be finite"),
    ),
)
def test_a_wrong_line_is_named(tmp_path, capsys, line, message):
    file = write(tmp_path / "run.jsonl", RECORD, line)
    with pytest.raises(BadRequests, match=rf"run.jsonl:2: .*{message}"):
        read(file)
    assert main(["serving", str(file)]) == 2
    assert "npu-lab serving:" in capsys.readouterr().err


def test_a_file_without_records_and_a_missing_one_are_named(tmp_path, capsys):
    with pytest.raises(BadRequests, match=r"run.jsonl: must hold a record \(got none\)"):
        read(write(tmp_path / "run.jsonl", ""))
    assert main(["serving", str(tmp_path / "none.jsonl")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_tables_of_one_run_and_of_the_change_to_another(tmp_path, capsys):
    before, after = write(tmp_path / "before.jsonl", *run_of(0)), write(tmp_path / "after.jsonl", *run_of(0, speed=2.0))
    assert main(["serving", str(before)]) == 0
    text = capsys.readouterr().out
    for word in ("E2EL", "TTFT", "TPOT", "ITL", "Average", "Median", "P75", "P90", "P99", "N", "Common Metric", "Output Token Throughput"):
        assert word in text
    assert "Change" not in text
    assert main(["serving", str(before), str(after)]) == 0
    text = capsys.readouterr().out
    # Twice the speed: half of each latency.
    for name in ("E2EL", "TTFT", "TPOT", "ITL"):
        (row,) = [line for line in text.splitlines() if line.startswith(f"│ {name}, ms")]
        assert row.count("(-50.0%)") == 4


def test_a_run_that_failed_beside_a_good_one_is_shown_without_a_change(tmp_path, capsys):
    good = write(tmp_path / "good.jsonl", RECORD)
    bad = write(tmp_path / "bad.jsonl", {"start": 0.0, "input_tokens": 7, "end": 1.0, "error": "refused"})
    assert main(["serving", str(good), str(bad)]) == 0
    assert "–" in capsys.readouterr().out
