"""Repositories that tests make and change."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from repo import ROOT

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


def copy_of_the_repository(target: Path) -> Path:
    """What git tracks of this repository, as it lies here; committed as the only commit of the branch main."""
    for name in filter(None, git_in(ROOT)("ls-files", "-z").split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    git_in(target)("init", "--initial-branch", "main")
    commit(target)
    return target
