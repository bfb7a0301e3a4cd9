"""The import contracts, run on small packages made for the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from imports import contracts
from repo import operators

MODULES = ("npu_op_runtime", "npu_op_lab", "npu_op_one", "npu_op_two")


def lint(root: Path, statements: dict[str, str], dependencies: str = "") -> int:
    """import-linter's exit status for packages that hold these statements; `dependencies` are declared by npu-op-one."""
    for module in MODULES:
        (root / module).mkdir()
        (root / module / "__init__.py").write_text(f"import json\n{statements.get(module, '')}\n")
    for short in ("one", "two"):
        folder = root / "packages" / short
        folder.mkdir(parents=True)
        declared = dependencies if short == "one" else ""
        (folder / "pyproject.toml").write_text(f'[project]\nname = "npu-op-{short}"\ndependencies = [{declared}]\n')
    (root / "config.ini").write_text(contracts(operators(root)))
    command = [str(Path(sys.executable).parent / "lint-imports"), "--config", "config.ini", "--no-cache"]
    return subprocess.run(command, cwd=root, env={"PYTHONPATH": str(root)}, check=False, capture_output=True).returncode


def test_operators_on_the_runtime_alone_are_fine(tmp_path: Path) -> None:
    assert lint(tmp_path, {"npu_op_one": "import npu_op_runtime", "npu_op_lab": "import npu_op_runtime"}) == 0


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("npu_op_one", "npu_op_lab"),
        ("npu_op_one", "npu_op_two"),
        ("npu_op_runtime", "npu_op_lab"),
        ("npu_op_runtime", "npu_op_two"),
        ("npu_op_lab", "npu_op_one"),
    ],
)
def test_an_import_against_the_contract_fails(tmp_path: Path, module: str, imported: str) -> None:
    assert lint(tmp_path, {module: f"def late():\n    import {imported}"}) == 1


def test_a_declared_dependency_may_be_imported(tmp_path: Path) -> None:
    assert lint(tmp_path, {"npu_op_one": "import npu_op_two"}, dependencies='"npu-op-two>=0.1"') == 0
