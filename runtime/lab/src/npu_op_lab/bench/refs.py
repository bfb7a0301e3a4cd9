"""Measures two git refs in one run, in turns: what drifts during the run drifts for both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from .records import Record, read


class RefFailed(RuntimeError):
    """A ref cannot be checked out or measured; the message holds what git or the benchmark said."""


def measure_refs(refs: tuple[str, str], arguments: Sequence[str], rounds: int) -> tuple[list[Record], list[Record]]:
    """The records of both refs, `rounds` times each, A B B A A B ...

    The runtime and the operators come from the refs, the benchmark from this installation: one harness measures both.

    Args:
        refs: two commits, branches or tags of the repository in the working directory.
        arguments: of `npu-lab bench`, operators included.
        rounds: times that each ref is measured.

    Raises:
        RefFailed: git or the benchmark failed.
    """
    found: tuple[list[Record], list[Record]] = ([], [])
    with ExitStack() as stack:
        trees = [stack.enter_context(worktree(ref)) for ref in refs]
        for turn in range(rounds):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            for which in order:
                found[which].extend(_bench(trees[which], arguments, refs[which]))
    return found


@contextmanager
def worktree(ref: str) -> Iterator[Path]:
    """The files of a ref, in a folder that is removed afterwards."""
    with TemporaryDirectory(prefix="npu-lab-") as folder:
        tree = Path(folder) / "tree"
        _run(["git", "worktree", "add", "--detach", str(tree), ref], f"git cannot check out {ref}")
        try:
            yield tree
        finally:
            _run(["git", "worktree", "remove", "--force", str(tree)], f"git cannot remove the worktree of {ref}")


def _bench(tree: Path, arguments: Sequence[str], ref: str) -> list[Record]:
    sources = [tree / "runtime/core/src", *sorted(tree.glob("packages/*/src"))]
    path = os.pathsep.join([*map(str, sources), *filter(None, [os.environ.get("PYTHONPATH")])])
    with TemporaryDirectory(prefix="npu-lab-") as folder:
        command = [sys.executable, "-m", "npu_op_lab.cli", "bench", *arguments, "--out", folder]
        _run(command, f"the benchmark of {ref} failed", {**os.environ, "PYTHONPATH": path})
        return [record for file in sorted(Path(folder).glob("*.jsonl")) for record in read(file)]


def _run(command: list[str], problem: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise RefFailed(f"{problem}: {(failed or said[-1:] or ['it said nothing'])[0]}")
