"""The RFC's table from records: marks, renderings, embedding, and the check that it is still true."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from npu_op_lab import operators
from npu_op_lab.bench import MODES, Outcome, Record, points_of, run
from npu_op_lab.bench.points import RFC_ROWS
from npu_op_lab.bench.sources import kernels_hash, model_hash, package_of
from npu_op_lab.cli import main
from npu_op_lab.commands import scoreboard as command
from npu_op_lab.scoreboard import board, boards, files, measured_before, stale, write_files
from npu_op_lab.scoreboard.files import RECORDS
from npu_op_lab.scoreboard.render import html, markdown, text_of
from npu_op_lab.scoreboard.results import results_of

from .bench_fakes import FakeBackend, double, spec, zeros


def _records(kernel: str = "softmax", device: str = "Ascend910B4", launches: int | None = None, **microseconds: float) -> list[Record]:
    """Modelled records under the name of a row; `launches` of eager."""
    found = run(FakeBackend(device, **microseconds), points_of(spec(), ["llama_3_8b"], [8, 16]), ["ours", "eager", "liger"], MODES).records
    return [replace(record, kernel_name=kernel, basis="modelled", launches=launches) for record in found]


def _row(records: list[Record], kernel: str = "softmax") -> board.Row:
    (made,) = boards(records)
    return next(row for row in made.rows if row.kernel == kernel)


def test_rows_are_the_rfcs_in_its_order_then_the_others() -> None:
    (made,) = boards([*_records(), *_records("split_qk_norm")])
    assert [row.kernel for row in made.rows] == [*RFC_ROWS, "split_qk_norm"] and len(RFC_ROWS) == 18
    assert next(row.rfc for row in made.rows if row.kernel == "kl_div") == (True, False, False, True)
    missing = [row.kernel for row in made.rows if row.missing]
    assert len(missing) == 17 and "softmax" not in missing
    assert "8 of 8 cells of 2 rows pass" in made.summary and "17 rows have no figures" in made.summary


def test_a_mark_is_the_worst_ratio_over_the_sizes() -> None:
    records = _records()  # eager 3 times ours, liger twice
    slow = next(
        index for index, record in enumerate(records) if (record.kernel_provider, record.kernel_operation_mode) == ("ours", "forward")
    )
    record = records[slow]
    records[slow] = replace(record, y_values_50=[record.y_values_50[0], 4 * record.y_values_50[1]])
    row = _row(records)
    assert row.eager[0] == board.Mark("fail", pytest.approx(0.75)) and text_of(row.eager[0]) == "✗ 0.75×"
    assert row.eager[1] == board.Mark("pass", pytest.approx(3.0)) and row.liger[2] == board.Mark("pass", pytest.approx(2.0))
    assert row.eager[3] == board.Mark("pass", 1.0)  # equal memory is no loss


@pytest.mark.parametrize(
    ("eager", "launches", "kind"), [(0.97, 1, "level"), (0.97, 2, "fail"), (0.9, 1, "fail"), (1.0, 1, "level"), (1.01, 1, "pass")]
)
def test_only_a_modelled_single_kernel_may_be_level(eager: float, launches: int, kind: str) -> None:
    assert _row(_records(launches=launches, eager=eager)).eager[0].kind == kind
    measured = [replace(record, basis="measured") for record in _records(launches=launches, eager=eager)]
    assert _row(measured).eager[0].kind == ("pass" if eager > 1 else "fail")
    assert _row(_records(launches=launches, liger=eager)).liger[0].kind == ("pass" if eager > 1 else "fail")


def test_a_ratio_is_never_rounded_up_to_a_pass() -> None:
    assert text_of(board.Mark("fail", 0.9999)) == "✗ 0.999×"
    assert text_of(board.Mark("fail", 0.949)) == "✗ 0.94×"


def test_a_refused_operator_has_no_ratio() -> None:
    found = run(FakeBackend("X"), points_of(spec(function=zeros), ["llama_3_8b"], [8]), ["ours", "eager"], MODES).records
    row = _row([replace(record, kernel_name="tvd") for record in found], "tvd")
    assert {(mark.kind, mark.ratio) for mark in row.eager} == {("refused", None)}


def _broken(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 16:
        raise RuntimeError("no tile fits")
    return x + x


def test_an_operator_that_raised_failed_and_is_not_called_absent() -> None:
    found = run(FakeBackend("X"), points_of(spec(function=_broken), ["llama_3_8b"], [8, 16]), ["ours", "eager", "liger"], MODES).records
    records = [replace(record, kernel_name="tvd") for record in found]
    (made,) = boards(records)
    row = next(row for row in made.rows if row.kernel == "tvd")
    assert not row.missing and {(mark.kind, mark.ratio) for mark in (*row.eager, *row.liger)} == {("failed", None)}
    assert "0 of 4 cells of 1 rows pass" in made.summary
    assert "| `tvd` | **failed** |" in markdown([made]) and '<td class="failed">failed</td>' in html([made])
    # nor is one whose records of ours got lost
    (made,) = boards([record for record in records if record.kernel_provider != "ours"])
    assert next(row for row in made.rows if row.kernel == "tvd").eager == (board.Mark("failed"),) * 4


def test_a_row_of_another_device_is_in_the_repository() -> None:
    first, second = boards([*_records(), *_records("tvd", "Ascend910B3")])
    missing = {row.kernel: row.missing for row in first.rows}
    assert (missing["softmax"], missing["tvd"], missing["jsd"]) == ("", "not run on this device", "not in the repository yet")
    assert next(row.missing for row in second.rows if row.kernel == "softmax") == "not run on this device"


def test_renderings_say_where_figures_come_from() -> None:
    made = boards([*_records(eager=0.5), *_records(device="Ascend910B3")])
    for text in (markdown(made), html(made)):
        assert "Modelled on Ascend910B4" in text and "Modelled on Ascend910B3" in text
        assert "No NPU ran any of it" in text and "1000 GB/s, made up" in text
        assert "✗ 0.50×" in text and "not in the repository yet" in text


PACKAGE_README = Path("packages/toy/README.md")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose only operator has the records of `_current`."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "packages/toy/src/npu_op_toy").mkdir(parents=True)
    (tmp_path / "packages/toy/src/npu_op_toy/spec.py").write_text("SPEC = None\n")
    embedding = [*((file, files.SCOREBOARD) for file in files.EMBEDDING), (PACKAGE_README, files.RESULTS)]
    for file, (start, end) in embedding:
        (tmp_path / file).write_text(f"before\n\n{start}\nold\n{end}\n\nafter\n")
    return tmp_path


def _current(root: Path) -> list[Record]:
    """Records of the operator that `root` has."""
    (package,) = files.packages_of(root).values()
    return [replace(record, model_hash=model_hash(), kernels_hash=kernels_hash(package)) for record in _records()]


def test_written_files_are_true_and_embedded(root: Path) -> None:
    written = write_files(_current(root), root)
    assert stale(root) == []
    assert all(file.exists() for file in written) and root / "docs/scoreboard/Ascend910B4-modelled.png" in written
    text = (root / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "| `softmax` | ✓ 3.00× |" in text
    write_files(_current(root), root)
    assert (root / "README.md").read_text() == text


def test_a_package_embeds_its_own_results(root: Path) -> None:
    write_files(_current(root), root)
    text = (root / PACKAGE_README).read_text()
    assert "| modelled on Ascend910B4 | `softmax` |" in text and "old" not in text
    (root / PACKAGE_README).write_text(text.replace("3.00×", "9.00×"))
    assert stale(root) == ["packages/toy/README.md: embeds another table than docs/scoreboard/records.jsonl gives"]


def test_a_package_without_a_table_gets_one_at_the_end(root: Path) -> None:
    (root / PACKAGE_README).write_text("# toy\n")
    write_files(_current(root), root)
    text = (root / PACKAGE_README).read_text()
    assert text.startswith("# toy\n\n## Results\n") and "| modelled on Ascend910B4 | `softmax` |" in text
    assert stale(root) == []


def test_an_operator_without_results_says_so() -> None:
    assert results_of("absent", _records()).startswith("No results yet")


def test_readme_shows_the_first_device_the_page_all(root: Path) -> None:
    write_files([*_current(root), *[replace(record, gpu_name="Ascend910B3") for record in _current(root)]], root)
    assert "Ascend910B3" not in (root / "README.md").read_text()
    assert "Ascend910B3" in (root / "docs/benchmarks.md").read_text()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kernels_hash": "another"}, "toy or the runtime changed since"),
        ({"model_hash": "another"}, "the emulator changed since"),
        ({"operator": "gone"}, "no figures of toy on Ascend910B4"),
        ({"operator": "gone"}, "gone is not below packages/"),
    ],
)
def test_a_table_older_than_its_sources_is_stale(root: Path, changes: dict[str, str], reason: str) -> None:
    write_files([replace(record, **changes) for record in _current(root)], root)
    assert any(reason in found for found in stale(root))


def test_an_operator_without_figures_of_ours_is_stale(root: Path) -> None:
    lost = [record for record in _current(root) if record.kernel_provider != "ours"]
    write_files(lost, root)
    assert stale(root) == [f"{RECORDS}: no figures of toy on Ascend910B4, row softmax: no record of ours"]
    (package,) = files.packages_of(root).values()
    raised = run(FakeBackend("Ascend910B4"), points_of(spec(function=_broken), ["llama_3_8b"], [8, 16]), ["ours"], MODES).records
    changes = {"basis": "modelled", "model_hash": model_hash(), "kernels_hash": kernels_hash(package)}
    write_files([*lost, *(replace(record, kernel_name="softmax", **changes) for record in raised)], root)
    assert stale(root) == [f"{RECORDS}: no figures of toy on Ascend910B4, row softmax: at llama_3_8b-T16: RuntimeError: no tile fits"]


def test_only_the_operators_of_the_checkout_count(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(_current(root), root)
    monkeypatch.chdir(root)
    monkeypatch.setattr(operators, "names", lambda: ["elsewhere", "toy"])
    assert main(["scoreboard", "--check"]) == 0
    monkeypatch.setattr(operators, "names", list)
    assert main(["scoreboard"]) == 2
    assert "below packages/ but not installed: toy" in capsys.readouterr().err
    shutil.rmtree(root / "packages")
    assert main(["scoreboard", "--check"]) == 2
    assert "run this in the root of the repository" in capsys.readouterr().err


@pytest.mark.parametrize(("function", "status"), [(double, 0), (_broken, 1), (zeros, 1)])
def test_command_fails_without_figures_of_ours(
    function: Callable[..., object], status: int, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(FakeBackend("Ascend910B4"), points_of(spec(function=function), ["llama_3_8b"], [8, 16]), ["ours", "eager"], MODES)
    outcome.records = [replace(record, basis="modelled") for record in outcome.records]
    monkeypatch.chdir(root)
    monkeypatch.setattr(operators, "names", lambda: ["toy"])
    monkeypatch.setattr(command, "_outcomes", lambda *_: [outcome])
    assert main(["scoreboard"]) == status
    reason = {double: "", _broken: "RuntimeError: no tile fits", zeros: "output: max error"}[function]
    said = capsys.readouterr().err
    assert said.startswith("npu-lab scoreboard: no figures of toy on Ascend910B4, row toy: ") and reason in said if status else said == ""


def test_figures_of_one_operator_are_made_anew(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(root / "packages/toy", root / "packages/another")
    both = [
        replace(record, operator=name, model_hash=model_hash(), kernels_hash=kernels_hash(package), gpu_name=device)
        for device in ("Ascend910B4", "Ascend910B3")
        for name, package in files.packages_of(root).items()
        for record in _records()
    ]
    write_files(both, root)
    written = (root / RECORDS).read_text()
    monkeypatch.chdir(root)
    monkeypatch.setattr(operators, "names", lambda: ["another", "toy"])
    asked = []

    def outcomes(socs: Sequence[str], names: Sequence[str], models: Sequence[str]) -> list[Outcome]:
        asked.append(names)
        return [Outcome([record for record in both if record.operator == "another"])]

    monkeypatch.setattr(command, "_outcomes", outcomes)
    (root / RECORDS).write_text("\n".join(line for line in written.splitlines() if '"operator": "toy"' in line))
    assert main(["scoreboard", "--check"]) == 1
    assert main(["scoreboard", "another"]) == 0
    assert asked == [["another"]]
    assert (root / RECORDS).read_text() == written
    assert main(["scoreboard", "--check"]) == 0
    assert main(["scoreboard", "other"]) == 2
    assert "operator must be below packages/: another, toy (got other)" in capsys.readouterr().err


def test_figures_measured_on_a_device_may_be_older(root: Path) -> None:
    device = [replace(record, gpu_name="H200", basis="measured", kernels_hash="another", model_hash=None) for record in _current(root)]
    write_files([*_current(root), *device], root)
    assert stale(root) == []
    # and stay, until the same device is measured again
    assert {record.gpu_name for record in measured_before(root, [])} == {"H200"}
    again = [replace(device[0], kernel_name="tvd")]
    assert measured_before(root, again) == again


def test_an_edited_table_or_page_is_stale(root: Path) -> None:
    write_files(_current(root), root)
    readme = root / "README.md"
    readme.write_text(readme.read_text().replace("3.00×", "9.00×"))
    (root / files.PAGE).unlink()
    (root / RECORDS).with_name("Ascend910B4-modelled.png").unlink()
    reasons = "\n".join(stale(root))
    assert "README.md: embeds another table" in reasons and "scoreboard.html: not what" in reasons and "png: missing" in reasons


def test_no_records_and_no_markers_are_named(root: Path) -> None:
    assert "No such file" in stale(root)[0]
    (root / "README.md").write_text("no markers\n")
    with pytest.raises(ValueError, match="README.md must hold the lines"):
        write_files(_current(root), root)
    assert not (root / RECORDS).exists()


def test_the_hash_follows_the_operators_package() -> None:
    assert {record.kernels_hash for record in _records()} == {kernels_hash(package_of(spec()))}
