"""Repositories that tests make and change."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from repo import ROOT, Distribution

# As a fresh machine would have it: no settings of whoever runs the tests, but a name to commit with.
ENVIRONMENT = os.environ | {f"GIT_{who}_{what}": "test@test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ENVIRONMENT |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def git_in(folder: Path) -> Callable[..., str]:
    """git, run in a folder; its standard output."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout

    return git


def write(root: Path, name: str, text: str = "text\n") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def commit(root: Path) -> None:
    """Everything that lies there."""
    git_in(root)("add", "--all")
    git_in(root)("commit", "--message", "a change")


def operator(root: Path, name: str, version: str, *needs: str, **files: str) -> Distribution:
    """A distribution made for a test; `files` are the modules of its package."""
    found = Distribution(root / "packages" / name)
    module = f"npu_op_{name}"
    metadata = f'name = "npu-op-{name}"\nrequires-python = ">=3.9"\ndynamic = ["version"]\nreadme = "README.md"\n'
    metadata += 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]\n'
    hatch = f'[tool.hatch]\nversion.path = "src/{module}/__about__.py"\nbuild.targets.wheel.packages = ["src/{module}"]\n'
    build_system = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    write(found.folder, "pyproject.toml", f"{build_system}[project]\n{metadata}dependencies = {list(needs)}\n{hatch}")
    write(found.folder, "README.md")
    write(found.folder, "CHANGELOG.md", "# Changelog\n\n<!-- towncrier release notes start -->\n")
    write(found.folder, "changelog.d/1.added.md", "Something new.\n")
    write(found.folder, f"src/{module}/__about__.py", f'"""Version."""\n\n__version__ = "{version}"\n')
    for file, text in files.items():
        write(found.folder, f"src/{module}/{file}.py", text)
    shutil.copy(ROOT / "LICENSE", found.folder)
    return found


def copy_of_the_repository(target: Path) -> Path:
    """What git tracks of this repository, as it lies here; committed as the only commit of the branch main."""
    for name in filter(None, git_in(ROOT)("ls-files", "-z").split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    git_in(target)("init", "--initial-branch", "main")
    commit(target)
    return target
