"""Two runs side by side, from files and from git refs; Liger's CSV; drawing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from npu_op_lab.bench import MODES, BadRecords, Change, Record, compare, points_of, refs, run, write
from npu_op_lab.bench.liger_csv import COLUMNS, read_liger
from npu_op_lab.bench.plots import plot
from npu_op_lab.bench.records import cells
from npu_op_lab.cli import main

from .bench_fakes import FakeBackend, spec


def _records(models: tuple[str, ...] = ("llama_3_8b",), tokens: tuple[int, ...] = (8, 16), **microseconds: float) -> list[Record]:
    return run(FakeBackend(**microseconds), points_of(spec(), models, tokens), ["ours", "eager", "liger"], MODES).records


def _ours(changes: list[Change]) -> list[Change]:
    return [change for change in changes if (change.after.record.kernel_provider, change.after.record.metric_name) == ("ours", "speed")]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (0.5, "better"),
        (2.0, "worse"),
        (1.2, "noise"),  # the ranges, -10 % to +20 %, still touch
        (0.85, "noise"),
    ],
)
def test_verdict_takes_the_spread_into_account(ours: float, verdict: str) -> None:
    changes = compare(_records(), _records(ours=ours))
    found = {
        change.verdict for change in changes if change.after.record.kernel_provider == "ours" and change.after.record.metric_name == "speed"
    }
    assert found == {verdict}
    assert {change.verdict for change in changes if change.after.record.kernel_provider != "ours"} == {"noise"}


def test_a_change_below_what_clocks_drift_is_noise_however_small_the_spread() -> None:
    def exact(factor: float, basis: str) -> list[Record]:
        record = _records()[0]
        values = [factor * value for value in record.y_values_50]
        return [replace(record, basis=basis, y_values_50=values, y_values_20=values, y_values_80=values)]

    assert [change.verdict for change in compare(exact(1, "measured"), exact(1.01, "measured"))] == ["noise", "noise"]
    assert [change.verdict for change in compare(exact(1, "modelled"), exact(1.01, "modelled"))] == ["worse", "worse"]


def test_rounds_widen_the_range_to_their_medians() -> None:
    rounds = [*_records(), *_records(ours=1.5), *_records(ours=1.6)]
    changes = compare(rounds, _records(ours=0.85))
    speed = next(
        change for change in changes if change.after.record.kernel_provider == "ours" and change.after.record.metric_name == "speed"
    )
    # medians of 8 us, 12 us, 12.8 us; the lowest is within the range
    assert speed.before.median == pytest.approx(0.012) and speed.before.low == pytest.approx(0.008)


def test_measured_is_never_compared_with_modelled() -> None:
    modelled = [replace(record, basis="modelled") for record in _records()]
    assert compare(_records(), modelled) == []


def test_command_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ours in (("a", 1.0), ("b", 2.0)):
        write(_records(ours=ours), tmp_path / f"{name}.jsonl")
    files = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    assert main(["compare", *files]) == 1
    assert "0 better, 8 worse, 40 noise" in capsys.readouterr().out
    assert main(["compare", *reversed(files)]) == 0
    assert "8 better, 0 worse" in capsys.readouterr().out


def test_command_names_what_it_cannot_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    write(_records(), good)
    bad.write_text("nonsense\n")
    assert main(["compare", str(good), str(bad)]) == 2
    assert "bad.jsonl:1: must be JSON" in capsys.readouterr().err
    assert main(["compare", str(good), "no-such-file"]) == 2
    assert "no-such-file: no such file; for two git refs name the operators after --bench" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", ["0", "-1", "two"])
def test_command_needs_a_round(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "HEAD", "HEAD", "--rounds", rounds, "--bench", "geglu"])
    assert stopped.value.code == 2 and f"--rounds: must be a whole number above 0 (got '{rounds}')" in capsys.readouterr().err


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, "slow" and "fast", of an operator's folder."""
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@x", *arguments], check=True, capture_output=True)

    git("init", "-q")
    source = tmp_path / "packages" / "toy" / "src"
    source.mkdir(parents=True)
    for tag in ("slow", "fast"):
        (source / "speed.txt").write_text(tag)
        git("add", ".")
        git("commit", "-qm", tag)
        git("tag", tag)
    return tmp_path


def test_refs_are_measured_in_turns_in_worktrees_that_go_away(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def bench(tree: Path, arguments: object, ref: str) -> list[Record]:
        assert (tree / "packages/toy/src/speed.txt").read_text() == ref
        turns.append(ref)
        return _records(tokens=(8,), ours=3.0 if ref == "slow" else 1.0)

    monkeypatch.setattr(refs, "_bench", bench)
    before, after = refs.measure_refs(("slow", "fast"), ["toy"], 3)
    assert turns == ["slow", "fast", "fast", "slow", "slow", "fast"]
    verdicts = {change.verdict for change in compare(before, after) if change.after.record.kernel_provider == "ours"}
    assert verdicts == {"better", "noise"}  # speed, memory
    left = subprocess.run(["git", "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(left.splitlines()) == 1


def test_a_ref_that_fails_says_why(repository: Path) -> None:
    with pytest.raises(refs.RefFailed, match="git cannot check out nowhere: .*invalid reference"):
        refs.measure_refs(("slow", "nowhere"), ["toy"], 1)
    with pytest.raises(refs.RefFailed, match="the benchmark of slow failed: .*operator must be one of .*got 'no-such-operator'"):
        refs.measure_refs(("slow", "fast"), ["no-such-operator"], 1)


_ROW = (
    'geglu,liger,full,speed,ms,T,sequence length,{x},{y},{y},{y},"{{""dtype"": ""torch.bfloat16""}}",Ascend910B4,2026-01-20 02:12:01,0.6.4'
)


def test_ligers_csv_becomes_records(tmp_path: Path) -> None:
    file = tmp_path / "all_benchmark_data.csv"
    # rows come in any order; 910B4 figures of Liger-Kernel pull request 1031
    file.write_text("\n".join([",".join(COLUMNS), _ROW.format(x=2048, y=77.97), _ROW.format(x=1024, y=41.3)]))
    (record,) = read_liger(file)
    assert record.x_values == [1024, 2048] and record.y_values_50 == [41.3, 77.97]
    assert (record.dtype, record.soc, record.verified, record.liger_version) == ("bfloat16", "Ascend910B4", None, "0.6.4")
    write([record], tmp_path / "converted.jsonl")
    assert main(["compare", str(file), str(tmp_path / "converted.jsonl")]) == 0


@pytest.mark.parametrize(
    ("text", "message"), [("kernel_name,x\n1,2\n", "missing here: kernel_provider"), ("", "missing here: kernel_name")]
)
def test_another_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(BadRecords, match=message):
        read_liger(tmp_path / "other.csv")
    with pytest.raises(BadRecords, match="could not convert string to float: 'many'"):
        (tmp_path / "other.csv").write_text("\n".join([",".join(COLUMNS), _ROW.format(x="many", y=1)]))
        read_liger(tmp_path / "other.csv")


@pytest.mark.parametrize("tokens", [(8,), (8, 16, 32)])
def test_pictures_show_every_provider_and_the_roof(tmp_path: Path, tokens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def keep(figure, *arguments: object, **options: object) -> None:
        drawn.append(figure)
        save(figure, *arguments, **options)

    from matplotlib.figure import Figure

    save: Callable[..., None] = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", keep)
    records = _records(("llama_3_8b", "deepseek_v3"), tokens)
    (file,) = plot(records, tmp_path / "run")
    assert file.name == "run-toy-Fake_1.png" and file.stat().st_size > 10_000
    (figure,) = drawn
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"ours", "eager", "liger", "roof"}
    assert "measured on Fake 1" in figure.get_suptitle()
    # three speeds and memory; a column for each model, or one for all
    assert len(figure.axes) == 4 * (2 if len(tokens) > 1 else 1)
    heights = [axis.get_ylim()[1] for axis in figure.axes[:1]]
    best = max((cell.bytes or 0) / (cell.low * 1e-3) / 1e9 for cell in cells(records) if cell.record.metric_name == "speed")
    assert heights[0] > best or heights[0] > 1000


def test_saved_run_is_drawn_again_and_a_bad_file_does_not_stop_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(_records(), tmp_path / "run.jsonl")
    assert main(["plot", str(tmp_path / "none.jsonl"), str(tmp_path / "run.jsonl")]) == 2
    shown = capsys.readouterr()
    assert "none.jsonl" in shown.err and "toy, bfloat16: measured on Fake 1" in shown.out
    assert (tmp_path / "run-toy-Fake_1.png").exists()
