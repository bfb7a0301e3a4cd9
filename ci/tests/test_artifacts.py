"""The check of built archives must notice what a broken build puts into them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts import contents, problems
from repo import distributions


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runtime's wheel and sdist, built by its own back end without an isolated environment."""
    runtime = next(found for found in distributions() if found.name == "npu-op-runtime")
    target = tmp_path_factory.mktemp("dist")
    # A build must not depend on who runs it: no settings of the user, no site of the tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HATCH", "PYTHON"))}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(target)], cwd=runtime.folder, env=environment, check=True)
    return {path.suffix: path for path in target.iterdir()}


@pytest.fixture(params=[".whl", ".gz"])
def archive(request: pytest.FixtureRequest, archives: dict[str, Path]) -> Path:
    return archives[request.param]


def test_the_runtime_is_packed_as_it_should_be(archive: Path) -> None:
    assert list(problems(archive, contents(archive))) == []


@pytest.mark.parametrize("ending", ["LICENSE", "py.typed", "soc.py"])
def test_a_missing_file_is_noticed(archive: Path, ending: str) -> None:
    files = {name: data for name, data in contents(archive).items() if not name.endswith(ending)}
    assert len(list(problems(archive, files))) == 1


def test_a_member_outside_of_the_archive_is_noticed(archive: Path) -> None:
    files = contents(archive) | {"npu_op_runtime/../../LICENSE": b""}
    assert any("outside of the archive" in problem for problem in problems(archive, files))


def test_other_requirements_than_declared_are_noticed(archive: Path) -> None:
    changed = {name: data.replace(b"Requires-Dist: torch>=2.6", b"Requires-Dist: torch") for name, data in contents(archive).items()}
    assert any("must require torch>=2.6" in problem for problem in problems(archive, changed))
