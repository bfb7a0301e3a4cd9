"""An operator made from the template is green from its first minute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts import contents
from checks import RULES
from new_op import RESERVED, instantiate
from npu_op_lab.scoreboard import stale
from readme import examples
from releasing.build import build
from repo import ROOT, Distribution, operators
from repositories import copy_of_the_repository


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_repository(tmp_path_factory.mktemp("repository"))


@pytest.mark.parametrize("name", ["soft-gate", "a2-b", "zeta"])
def test_what_is_made_keeps_every_rule(root: Path, name: str) -> None:
    before = {problem for rule in RULES for problem in rule(root)}
    folder, page = instantiate(root, name)
    assert {problem for rule in RULES for problem in rule(root)} <= before
    assert "my-op" not in page.read_text()
    for file in filter(Path.is_file, folder.rglob("*")):
        text = f"{file.relative_to(root)}{file.read_text()}"
        assert not any(placeholder in text for placeholder in ("my-op", "my_op", "MyOp"))
    for command in (["check"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(folder), str(root / "README.md")], cwd=root, check=True)
    made = Distribution(folder)
    assert made in operators(root)
    assert (made.short, made.module, made.lowest_runtime) == (name, f"npu_op_{name.replace('-', '_')}", "0.1")
    assert f"[npu-op-{name}](packages/{name})" in (root / "README.md").read_text()


@pytest.mark.parametrize("name", ["", "Gate", "a--b", "-a", "a-", "a b", "a_b", "../a", "1a"])
def test_a_name_that_cannot_be_one_is_refused(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name must be lower-case words with dashes"):
        instantiate(root, name)


@pytest.mark.parametrize("name", ["geglu", "runtime", "lab", *RESERVED])
def test_a_name_that_is_taken_is_refused(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is taken"):
        instantiate(root, name)


def test_what_is_made_builds_passes_its_battery_and_compiles(tmp_path: Path) -> None:
    root = copy_of_the_repository(tmp_path / "repository")
    folder, _ = instantiate(root, "soft-gate")
    wheel = next(path for path in build(Distribution(folder), tmp_path / "dist") if path.suffix == ".whl")
    # Installed beside everything else, for its entry point.
    for name, data in contents(wheel).items():
        target = tmp_path / "site" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def run(*command: str, cwd: Path = ROOT, **also: str) -> None:
        done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment | also, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]

    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests"))
    # The compile gate comes below, for all SoCs at once.
    run(*tests, "-k", "not test_compiles")
    run(*tests, "-k", "not test_compiles", TRITON_INTERPRET="1")
    run("-m", "npu_op_lab.cli", "compile", "soft-gate")
    run("-c", "\n".join(examples(folder / "README.md")))
    # Its figures, where lint asks for them.
    assert any("no figures of soft-gate" in reason for reason in stale(root))
    run("-m", "npu_op_lab.cli", "scoreboard", "soft-gate", cwd=root)
    assert not any("soft-gate" in reason for reason in stale(root))
