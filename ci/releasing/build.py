"""Builds sdist and wheel, and proves that the same input gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from releasing import Refused
from repo import Distribution


def run(command: Sequence[str], cwd: Path, refusal: str, **environment: str) -> None:
    """Runs a command, showing its output only where it fails.

    Raises:
        Refused: it failed.
    """
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{refusal}\n$ {' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())


def build(found: Distribution, target: Path) -> list[Path]:
    """Wheel and sdist of a distribution in `target`, by hatch's back end as pinned, the timestamps its constant."""
    # A build must not depend on who runs it: no settings of the user, and no secrets of the job.
    environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    done = subprocess.run(command, cwd=found.folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{found.name}: the build failed\n{done.stdout}{done.stderr}".rstrip())
    return sorted(path for path in target.iterdir() if path.name.startswith(f"{found.module}-"))


def build_twice(found: Distribution, target: Path) -> list[Path]:
    """Builds, compares the bytes with those of a second build, and checks what an index would.

    Raises:
        Refused: something is wrong with the archives.
    """
    archives = build(found, target)
    with tempfile.TemporaryDirectory() as again:
        for first, second in zip(archives, build(found, Path(again)), strict=True):
            if first.read_bytes() != second.read_bytes():
                raise Refused(f"{found.name}: two builds of one tree differ in {first.name}")
    check = [sys.executable, "-m", "twine", "check", "--strict"]
    run([*check, *map(str, archives)], target, f"{found.name}: an index would refuse the archives")
    return archives


def write_checksums(folder: Path) -> None:
    """SHA256SUMS of everything in the folder and below it, for `sha256sum --check`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(folder)}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def write_bill_of_materials(found: Distribution, version: str, python: Path, file: Path) -> None:
    """A CycloneDX document of what was installed in the environment in which the wheel was tried."""
    options = ["--pyproject", str(found.folder / "pyproject.toml"), "--mc-type", "library", "--output-reproducible", "--of", "JSON"]
    command = [sys.executable, "-m", "cyclonedx_py", "environment", *options, "--output-file", str(file), str(python)]
    run(command, found.folder, f"{found.name}: no bill of materials")
    document = json.loads(file.read_text())
    # pyproject.toml says that the version is dynamic.
    document["metadata"]["component"]["version"] = version
    file.write_text(f"{json.dumps(document, indent=2)}\n")
