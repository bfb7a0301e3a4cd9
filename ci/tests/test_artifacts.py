"""The check of built archives must notice what a broken build puts into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifacts import contents, problems
from releasing.build import build
from repo import distributions


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runtime's wheel and sdist."""
    runtime = next(found for found in distributions() if found.name == "npu-op-runtime")
    return {path.suffix: path for path in build(runtime, tmp_path_factory.mktemp("dist"))}


@pytest.fixture(params=[".whl", ".gz"])
def archive(request: pytest.FixtureRequest, archives: dict[str, Path]) -> Path:
    return archives[request.param]


def test_the_runtime_is_packed_as_it_should_be(archive: Path) -> None:
    assert list(problems(archive, contents(archive))) == []


def test_a_readme_beyond_ascii_is_compared_as_it_is(tmp_path: Path) -> None:
    geglu = next(found for found in distributions() if found.short == "geglu")
    assert not (geglu.folder / "README.md").read_text().isascii()
    for path in build(geglu, tmp_path):
        files = contents(path)
        assert list(problems(path, files)) == []
        changed = {name: data.replace("×".encode(), "÷".encode()) for name, data in files.items()}
        assert any("must carry the README" in problem for problem in problems(path, changed))


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
