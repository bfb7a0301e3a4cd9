"""The distributions of this repository, as found on disk."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Distribution:
    """One folder with a pyproject.toml: an operator under packages/ or a part of the runtime under runtime/."""

    folder: Path

    @cached_property
    def project(self) -> dict[str, Any]:
        """The [project] table."""
        table: dict[str, Any] = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        return table

    @property
    def name(self) -> str:
        """Name on the index, `npu-op-rmsnorm`."""
        return str(self.project["name"])

    @property
    def short(self) -> str:
        """Name in sessions, `rmsnorm`."""
        return self.name.removeprefix("npu-op-")

    @property
    def module(self) -> str:
        """Name to import, `npu_op_rmsnorm`."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.folder / "src" / self.module

    @property
    def about(self) -> Path:
        """The file that holds the version."""
        return self.source / "__about__.py"

    @property
    def version(self) -> str:
        """`__version__` of `__about__.py`."""
        for node in ast.parse(self.about.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
                return str(ast.literal_eval(node.value))
        raise ValueError(f"{self.about} must assign __version__")

    @property
    def requirements(self) -> dict[str, Requirement]:
        """What it needs without extras, by name."""
        return {requirement.name: requirement for requirement in map(Requirement, self.project.get("dependencies", []))}

    @property
    def lowest_runtime(self) -> str:
        """The lower bound on npu-op-runtime.

        Raises:
            ValueError: the requirement is missing, or is not a `>=` and a `<`.
        """
        requirement = self.requirements.get("npu-op-runtime")
        bounds = {clause.operator: clause.version for clause in requirement.specifier} if requirement else {}
        if set(bounds) != {">=", "<"}:
            raise ValueError(f"{self.name} must require npu-op-runtime>=X,<Y (got {requirement})")
        return bounds[">="]


def operators(root: Path = ROOT) -> list[Distribution]:
    """The operators, by name."""
    return list(_found(root, "packages"))


def distributions(root: Path = ROOT) -> list[Distribution]:
    """Everything that is published: the runtime and the operators."""
    return [*_found(root, "runtime"), *operators(root)]


def _found(root: Path, parent: str) -> Iterator[Distribution]:
    for file in sorted((root / parent).glob("*/pyproject.toml")):
        yield Distribution(file.parent)
