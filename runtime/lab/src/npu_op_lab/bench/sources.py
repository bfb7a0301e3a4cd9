"""Hashes of sources: whether a figure describes the kernels that are there now."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import tokenize
from importlib import import_module
from pathlib import Path

from npu_op_runtime.spec import OperatorSpec


def package_of(spec: OperatorSpec) -> Path:
    """Folder of the operator's package: where its spec lies."""
    return Path(inspect.getfile(spec.make_inputs)).parent


@functools.cache
def kernels_hash(package: Path) -> str:
    """Of an operator's package and of the runtime that plans and launches its kernels; comments and docstrings do not count."""
    return _hash(package, _folder("npu_op_runtime"))


@functools.cache
def model_hash() -> str:
    """Of what makes a modelled figure out of a kernel: the offline compiler and the emulator with its costs."""
    lab = _folder("npu_op_lab")
    return _hash(lab / "compiler", lab / "emulator")


def _folder(package: str) -> Path:
    file = import_module(package).__file__
    assert file is not None
    return Path(file).parent


def _hash(*folders: Path) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.json")]):
            if "validation" in file.parts:  # judges the model and is no part of it
                continue
            text = file.read_text()
            digest.update(f"{folder.name}/{file.relative_to(folder)}\0".encode())
            digest.update((significant(text) if file.suffix == ".py" else text).encode())
    return digest.hexdigest()[:16]


def significant(source: str) -> str:
    """The lines of a Python source without comments, docstrings and blank lines; the same under every Python version."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            first = node.body[0]
            skipped.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    kept = (line.rstrip() for number, line in enumerate(lines, 1) if number not in skipped)
    return "\n".join(line for line in kept if line)
