"""Compiles the kernels that a user's Python file launches."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .cases import CaseReport, compile_call


def compile_file(path: Path, socs: Sequence[str]) -> list[CaseReport]:
    """One report per SoC of the kernels that the file launches.

    The file is imported and its function `launch`, else `main`, called without arguments; a file that has neither is run as
    a script (its `if __name__ == "__main__"` block).

    Raises:
        ValueError: no such file, or an unknown SoC.
    """
    if not path.is_file():
        raise ValueError(f"path must be a Python file (got {path}, which does not exist)")
    return [compile_call(lambda: run_file(path), soc, str(path)) for soc in socs]


def run_file(path: Path) -> None:
    """Import the file and call its `launch`, else its `main`; run it as a script if it has neither."""
    with _as_script(path):
        _run(path)


def _run(path: Path) -> None:
    names = runpy.run_path(str(path), run_name=path.stem)
    entry = next((names[name] for name in ("launch", "main") if inspect.isfunction(names.get(name))), None)
    if entry is not None:
        entry()
    else:
        runpy.run_path(str(path), run_name="__main__")


@contextmanager
def _as_script(path: Path) -> Iterator[None]:
    """The arguments and the import path that the file would see as a script."""
    argv, search = sys.argv, sys.path
    sys.argv, sys.path = [str(path)], [str(path.parent.resolve()), *search]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, search
