"""Records of a run: complete, valid by the schema, and without figures where the oracle refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from rich.console import Console

from npu_op_lab import operators
from npu_op_lab.bench import MODES, BadRecords, Outcome, points_of, read, run, write
from npu_op_lab.bench.records import cells, schema
from npu_op_lab.bench.sources import significant
from npu_op_lab.bench.table import tables
from npu_op_lab.cli import main
from npu_op_lab.commands import bench as command
from npu_op_runtime.spec import Case

from .bench_fakes import FakeBackend, double, spec, zeros


def _run(**changes: object) -> Outcome:
    points = points_of(spec(**changes), ["llama_3_8b", "deepseek_v3"], [8, 16])
    return run(FakeBackend(), points, ["ours", "eager", "liger", "vendor"], MODES)


def _text(outcome: Outcome) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables(outcome.records):
        console.print(table)
    return console.export_text()


def test_every_record_is_valid_by_the_published_schema() -> None:
    Draft202012Validator.check_schema(schema())
    validator = Draft202012Validator(schema())
    records = _run().records
    # providers x models x modes x (speed, memory)
    assert len(records) == 3 * 2 * 4 * 2
    for record in records:
        validator.validate(json.loads(json.dumps(asdict(record))))


@pytest.mark.parametrize(
    "change",
    [
        {"basis": "guessed"},
        {"y_values_50": [-1.0, 1.0]},
        {"kernel_operation_mode": "sideways"},
        {"verified": False},
        {"x_values": [], "y_values_50": []},
    ],
)
def test_schema_refuses(change: dict[str, object]) -> None:
    record = asdict(_run().records[0]) | change
    assert list(Draft202012Validator(schema()).iter_errors(record))


def test_records_come_back_from_a_file(tmp_path: Path) -> None:
    records = _run().records
    write(records, tmp_path / "new" / "records.jsonl")
    assert read(tmp_path / "new" / "records.jsonl") == records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "bad.jsonl:1: must be JSON"),
        ('{"kernel_name": "geglu"}\n', "bad.jsonl:1: record: .* is a required property"),
        ("", "must hold a record"),
        (None, "No such file"),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadRecords, match=message) as raised:
        read(file)
    assert str(file) in str(raised.value)


def test_roof_share_is_least_bytes_at_the_roof_over_time() -> None:
    record = next(record for record in _run().records if record.kernel_operation_mode == "backward" and record.metric_name == "speed")
    # 3 tensors of 8 x 64 bf16 at 1 TB/s; ours takes 8 us
    assert record.bytes is not None and record.bytes[0] == 3 * 8 * 64 * 2
    assert record.roof_share is not None and record.roof_share[0] == pytest.approx(3 * 8 * 64 * 2 / 1e12 / 8e-6)


def test_refused_provider_has_no_figure_and_the_rest_goes_on() -> None:
    outcome = _run(peers={"liger": zeros})
    liger = [record for record in outcome.records if record.kernel_provider == "liger"]
    assert liger and not any(record.verified or record.y_values_50 for record in liger)
    assert all(record.verified for record in outcome.records if record.kernel_provider != "liger")
    assert not any(cell.record.kernel_provider == "liger" for cell in cells(outcome.records))
    assert any("liger" in failure and "output: max error" in failure for failure in outcome.failed)
    assert "3.00×" in _text(outcome) and "2.00×" not in _text(outcome)


def test_absent_and_failing_providers_are_noted_once() -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such\nkernel")

    outcome = _run(peers={"liger": broken})
    assert "toy by vendor: this machine has no vendor" in outcome.notes
    assert "toy by liger at llama_3_8b-T8: RuntimeError: no such" in outcome.notes
    assert {record.kernel_provider for record in outcome.records} == {"ours", "eager"}
    assert len(outcome.notes) == len(set(outcome.notes))


def _breaks_at_16(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 16:
        raise NotImplementedError("16 rows\nare too many")
    return x + x


def test_ours_raising_at_a_size_is_a_failure_with_a_record_of_its_own() -> None:
    outcome = _run(function=_breaks_at_16)
    reason = "at llama_3_8b-T16: NotImplementedError: 16 rows"
    assert outcome.failed == [f"toy by ours {reason}", f"toy by ours {reason.replace('llama_3_8b', 'deepseek_v3')}"]
    assert not any("ours" in note for note in outcome.notes)
    ours = [record for record in outcome.records if record.kernel_provider == "ours" and record.model == "llama_3_8b"]
    assert {tuple(record.x_values) for record in ours if record.verified} == {(8,)}
    without = [record for record in ours if not record.verified]
    assert [record.kernel_operation_mode for record in without] == list(MODES)
    assert {record.verified_by and record.verified_by["reason"] for record in without} == {reason}
    validator = Draft202012Validator(schema())
    for record in without:
        validator.validate(json.loads(json.dumps(asdict(record))))


@pytest.mark.parametrize(("function", "status"), [(double, 0), (_breaks_at_16, 1), (zeros, 1)])
def test_command_fails_when_ours_raises_anywhere(
    function: Callable[..., object], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operators, "load", lambda _: spec(function=function))
    monkeypatch.setattr(command, "backends_here", lambda *_: [FakeBackend()])
    assert main(["bench", "toy", "--model", "llama_3_8b", "--tokens", "8,16", "--out", str(tmp_path)]) == status
    assert ("FAILED toy by ours at llama_3_8b-T" in capsys.readouterr().out) == bool(status)


def test_command_names_a_wrong_operator_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "no_such_op"]) == 2
    assert capsys.readouterr().err.count("operator must be one of") == 1


def test_command_writes_to_a_folder_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for name in ("x.jsonl", "file"):
        with pytest.raises(SystemExit) as stopped:
            main(["bench", "geglu", "--out", str(tmp_path / name)])
        assert stopped.value.code == 2 and "argument --out: must be a folder" in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()


def test_table_shows_times_ratios_roof_and_where() -> None:
    text = _text(_run())
    assert "toy, bfloat16: measured on Fake 1" in text
    assert "0.024 [0.0216–0.0288] (3.00×)" in text  # eager, 8 tokens
    assert "least bytes at 1000 GB/s (made up)" in text


def test_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="model must be one of llama_3_8b, .*got gpt_9"):
        points_of(spec(), ["llama_3_8b", "gpt_9"], [8])
    with pytest.raises(ValueError, match=r"model must be one of deepseek_v3 \(got llama_3_8b\)"):
        points_of(spec(models=("deepseek_v3",)), ["llama_3_8b"], [8])


def test_variants_are_rows_of_their_own() -> None:
    def wider(case: Case) -> Case:
        return replace(case, dims={**case.dims, "H": 128})

    points = points_of(spec(bench_variants={"narrow": lambda case: case, "wide": wider}), ["llama_3_8b"], [8])
    assert [(point.kernel, point.case.dims["H"]) for point in points] == [("narrow", 64), ("wide", 128)]


def test_comments_and_docstrings_are_not_significant() -> None:
    one = 'def f(x):\n    """Says."""\n    # why\n    return x + 1  # more\n'
    other = 'def f(x):\n    """Says\n    otherwise."""\n\n    return x + 1\n'
    assert significant(one) == significant(other)
    assert significant(one) != significant(one.replace("+ 1", "+ 2"))
    assert significant('x = "# not a comment"\n') == 'x = "# not a comment"'
