"""Changelogs: fragments become the section of a version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from packaging.version import Version

from releasing import Refused
from repo import Distribution

START = "<!-- towncrier release notes start -->\n"


def require_fragments(found: Distribution) -> None:
    """Refuses a release that has nothing to tell."""
    folder = found.folder / "changelog.d"
    # towncrier takes a README.md for none, and would release "No significant changes".
    if not list(folder.glob("*.*.md")):
        raise Refused(f"{found.name}: no fragments in {folder.name}/, so nothing to release; a change adds <pull request>.<kind>.md there")


def collect(tree: Path, found: Distribution, version: Version) -> None:
    """Moves the fragments into CHANGELOG.md, by the root's towncrier settings."""
    # git keeps no empty folder.
    (found.folder / "changelog.d" / ".gitkeep").touch()
    arguments = [
        "build",
        "--yes",
        "--config",
        "pyproject.toml",
        "--dir",
        str(found.folder),
        "--name",
        found.name,
        "--version",
        str(version),
    ]
    done = subprocess.run([sys.executable, "-m", "towncrier", *arguments], cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{found.name}: towncrier failed: {done.stdout}{done.stderr}")


def section(found: Distribution, version: Version) -> str:
    """What CHANGELOG.md tells of a version.

    Raises:
        Refused: nothing.
    """
    for part in (found.folder / "CHANGELOG.md").read_text().partition(START)[2].split("\n## "):
        title, _, body = part.strip().removeprefix("## ").partition("\n")
        if title.split(" ")[0] == str(version):
            return f"{body.strip()}\n"
    raise Refused(f"{found.name}: CHANGELOG.md has no section of version {version}")
