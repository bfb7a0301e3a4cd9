"""Compiles the kernels that a user's Python file launches."""

from __future__ import annotations

import inspect
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .cases import REFUSALS, CaseReport, compile_call


class UserFileError(ValueError):
    """A user's file failed of itself; the message names the file and the line, the error and its text."""


def compile_file(path: Path, socs: Sequence[str]) -> list[CaseReport]:
    """One report per SoC of the kernels that the file launches.

    The file is imported and its function `launch`, else `main`, called without arguments; a file that has neither is run as
    a script (its `if __name__ == "__main__"` block).

    Raises:
        ValueError: no such file, or an unknown SoC; a UserFileError if the file fails.
    """
    if not path.is_file():
        raise ValueError(f"path must be a Python file (got {path}, which does not exist)")
    return [compile_call(lambda: run_file(path, REFUSALS), soc, str(path)) for soc in socs]


def run_file(path: Path, passed: tuple[type[Exception], ...]) -> None:
    """Import the file and call its `launch`, else its `main`; run it as a script if it has neither.

    Errors of the types `passed` say something about a kernel and go through as they are.

    Raises:
        UserFileError: any other error, a syntax error and an exit with a status other than 0 included.
    """
    with _as_script(path):
        try:
            _run(path)
        except passed:
            raise
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise UserFileError(f"{_place(path, stop)}: exit with status {stop.code}") from None
        except Exception as error:
            raise UserFileError(f"{_place(path, error)}: {type(error).__name__}: {error}") from None


def _place(path: Path, error: BaseException) -> str:
    """The innermost line of the user's file that the error passed; of a syntax error its own."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


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
