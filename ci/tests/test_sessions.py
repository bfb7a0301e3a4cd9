"""The sessions follow from what lies on disk."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from repo import ROOT, distributions, operators


@pytest.fixture(scope="module")
def sessions() -> dict[str, str]:
    """Description by session name, of everything that `nox -l` shows."""
    return {name: doc for _, name, doc in listed()}


def listed(*selection: str) -> list[tuple[str, str, str]]:
    """Mark, name and description of the sessions that `nox -l` shows; the mark of selected ones is a star."""
    # Not --json: it leaves out what a bare `nox` would not run.
    listing = subprocess.run([sys.executable, "-m", "nox", "-l", *selection], cwd=ROOT, check=True, capture_output=True, text=True)
    return re.findall(r"^([*-]) (\S+)(?: \[[^]]*\])?(?: -> (.+))?$", listing.stdout, re.MULTILINE)


def test_every_operator_has_its_sessions(sessions: dict[str, str]) -> None:
    kinds = ("test", "bench", "compile", "emulate", "tolerance", "build")
    assert {f"{kind}-{operator.short}" for kind in kinds for operator in operators()} <= set(sessions)
    assert {f"{kind}-{found.short}" for kind in ("build", "release", "test") for found in distributions()} <= set(sessions)


def test_the_tag_of_an_operator_selects_what_ci_runs_for_it() -> None:
    selected = {name for mark, name, _ in listed("-t", "geglu") if mark == "*"}
    assert {name for name in selected if not name.startswith("prepare-")} == {"build-geglu", "compile-geglu", "test-geglu"}


def test_workflows_run_sessions_that_exist(sessions: dict[str, str]) -> None:
    commands = [line for file in (ROOT / ".github" / "workflows").glob("*.yml") for line in re.findall(r"-m nox (.+)", file.read_text())]
    named = [
        name.strip('"') for command in commands if "-s " in command for name in command.partition("-s ")[2].partition(" -- ")[0].split()
    ]
    assert {"lint", "types", "test-ci", "docs", "publish", "lowest-runtime", "bench-all"} <= set(named)
    assert {name.replace("$PACKAGE", "geglu") for name in named} <= set(sessions)


def test_every_session_is_explained_in_a_line(sessions: dict[str, str]) -> None:
    assert all(sessions.values())


def test_each_operator_is_tried_on_its_own_lowest_runtime(noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bounds = {"a": "0.1", "b": "0.2", "c": "0.1"}
    found = [SimpleNamespace(folder=Path("packages") / name, lowest_runtime=lowest) for name, lowest in bounds.items()]
    monkeypatch.setattr(noxfile, "operators", lambda: found)
    monkeypatch.setattr(noxfile, "build", lambda *_: [])
    done: list[tuple[str, ...]] = []

    def record(*command: str, **_: object) -> None:
        done.append(command)

    session = SimpleNamespace(posargs=("-x",), virtualenv=SimpleNamespace(location=tmp_path), install=record, run=record)
    noxfile.lowest_runtime(session)
    trials = [(command[-1],) if "--no-deps" in command else command[-3:] for command in done[1:]]
    assert trials == [
        ("npu-op-runtime==0.1",),
        ("packages/a/tests", "packages/c/tests", "-x"),
        ("npu-op-runtime==0.2",),
        (noxfile.WORKERS[-1], "packages/b/tests", "-x"),
    ]
