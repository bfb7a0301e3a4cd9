"""Questions to git. Standard library only: affected.py runs before anything is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class GitError(Exception):
    """git failed; the message holds its own words."""


def git(root: Path, *args: str) -> str:
    """Standard output of git; undecodable bytes of file names survive.

    Raises:
        GitError: git failed.
    """
    done = subprocess.run(["git", *args], cwd=root, capture_output=True, check=False)
    if done.returncode:
        raise GitError(f"git {' '.join(args)}: {os.fsdecode(done.stderr).strip()}")
    return os.fsdecode(done.stdout)
