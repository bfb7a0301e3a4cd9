"""npu-ops: its waves, on releases made for the test."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from releasing import Refused
from releasing.build import build
from releasing.trial import Wheelhouse
from releasing.umbrella import compatible, last_released, read_wave, require_version, stage, wave_file, write_wave
from repo import ROOT
from repositories import commit, git_in, operator, write


def release(root: Path, name: str, version: str, *needs: str) -> None:
    operator(root, name, version, *needs, __init__="")
    commit(root)
    git_in(root)("tag", f"npu-op-{name}-v{version}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    for name in ("LICENSE", "umbrella/README.md"):
        write(root, name, (ROOT / name).read_text())
    git_in(root)("init", "--initial-branch", "main")
    release(root, "runtime", "0.1.0")
    release(root, "one", "0.3.1", "npu-op-runtime>=0.1,<0.2")
    release(root, "two", "2.0.4", "npu-op-runtime>=0.1,<0.2", "npu-op-one>=0.3,<0.4")
    operator(root, "never-released", "0.1.0", "npu-op-runtime>=0.1,<0.2")
    return root


def house(root: Path) -> Wheelhouse:
    return Wheelhouse(root, root.parent / "house")


def test_a_wave_pins_what_was_released_last(root: Path) -> None:
    release(root, "one", "0.3.2", "npu-op-runtime>=0.1,<0.2")
    # In the tree, but not released.
    operator(root, "one", "0.9.0", "npu-op-runtime>=7")
    file = write_wave(root, Version("2026.12"), last_released(house(root)))
    assert file == wave_file(root, Version("2026.12"))
    assert {name: str(pin) for name, pin in read_wave(file).items()} == {
        "npu-op-one": "0.3.2",
        "npu-op-runtime": "0.1.0",
        "npu-op-two": "2.0.4",
    }


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("runtime", "0.2.0", r"npu-op-one 0.3.1 requires npu-op-runtime<0.2,>=0.1, but the last released npu-op-runtime is 0.2.0"),
        ("one", "0.4.0", r"npu-op-two 2.0.4 requires npu-op-one<0.4,>=0.3, but the last released npu-op-one is 0.4.0"),
    ],
)
def test_releases_that_do_not_fit_together_are_refused(root: Path, name: str, version: str, told: str) -> None:
    release(root, name, version, *(["npu-op-runtime>=0.1"] if name == "one" else []))
    with pytest.raises(Refused, match=told):
        last_released(house(root))


def test_a_wave_needs_releases(root: Path) -> None:
    for tag in git_in(root)("tag").split():
        git_in(root)("tag", "--delete", tag)
    with pytest.raises(Refused, match="needs a released runtime and a released operator .released are: none"):
        last_released(house(root))


def test_waves_are_called_by_year_and_month_and_go_on(root: Path) -> None:
    git_in(root)("tag", "npu-ops-v2026.9")
    assert require_version(root, "2026.12") == Version("2026.12")
    assert require_version(root, "2026.9.1") == Version("2026.9.1")
    for text in ("2026.9", "2026.8", "2025.12"):
        with pytest.raises(Refused, match=f"wave {text} does not come after 2026.9"):
            require_version(root, text)
    for text in ("0.1.0", "2026", "2026.13", "2026.012", "2026.12.0", "minor"):
        with pytest.raises(Refused, match="called by year and month"):
            require_version(root, text)


@pytest.mark.parametrize(("version", "expected"), [("0.3.1", "x>=0.3.1,<0.4"), ("2.0.4", "x>=2.0.4,<3"), ("0.0.7", "x>=0.0.7,<0.1")])
def test_a_range_ends_where_a_release_may_break(version: str, expected: str) -> None:
    assert compatible("x", Version(version)) == expected


def test_the_metadata_of_npu_ops_follows_from_the_wave(root: Path, tmp_path: Path) -> None:
    write_wave(root, Version("2026.12"), last_released(house(root)))
    staged = stage(root, Version("2026.12"), tmp_path / "source")
    assert staged.name == "npu-ops"
    assert staged.project["version"] == "2026.12"
    assert staged.project["dependencies"] == ["npu-op-runtime>=0.1.0,<0.2"]
    one, two = "npu-op-one>=0.3.1,<0.4", "npu-op-two>=2.0.4,<3"
    stacks = {stack: [f"npu-op-runtime[{stack}]"] for stack in ("ascend", "cuda")}
    assert staged.project["optional-dependencies"] == {"one": [one], "two": [two], "all": [one, two], **stacks}

    archives = build(staged, tmp_path / "dist")
    assert [path.name for path in archives] == ["npu_ops-2026.12-py3-none-any.whl", "npu_ops-2026.12.tar.gz"]
    shutil.unpack_archive(archives[1], tmp_path / "unpacked")
    assert read_wave(tmp_path / "unpacked" / "npu_ops-2026.12" / "2026.12.txt") == read_wave(wave_file(root, Version("2026.12")))


def test_the_extras_of_the_stacks_are_those_of_the_runtime() -> None:
    runtime = tomllib.loads((ROOT / "runtime" / "core" / "pyproject.toml").read_text())
    assert set(runtime["project"]["optional-dependencies"]) == {"ascend", "cuda"}
