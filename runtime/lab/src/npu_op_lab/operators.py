"""Finds the operators: the installed ones name their spec in the entry point group `npu_ops`; in a clone they lie below packages/."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from npu_op_runtime.spec import OperatorSpec

_GROUP = "npu_ops"
# This file is runtime/lab/src/npu_op_lab/operators.py in a clone.
_PACKAGES = Path(__file__).resolve().parents[4] / "packages"


def names() -> list[str]:
    """Names of the operators, sorted."""
    return sorted(_modules())


def load(name: str) -> OperatorSpec:
    """The spec of an operator.

    Raises:
        ValueError: no operator of that name; the message lists those that there are.
    """
    modules = _modules()
    if name not in modules:
        raise ValueError(f"operator must be one of the installed ones: {', '.join(sorted(modules)) or 'none'} (got {name!r})")
    spec = import_module(modules[name]).SPEC
    assert isinstance(spec, OperatorSpec)
    return spec


def _modules() -> dict[str, str]:
    """The module of each operator's spec: the installed ones', or, when none is installed, those of the clone that holds this file."""
    installed = {entry.name: entry.module for entry in entry_points(group=_GROUP)}
    if installed:
        return installed
    found = {}
    for file in sorted(_PACKAGES.glob("*/src/*/spec.py")):
        source = str(file.parents[1])
        if source not in sys.path:
            sys.path.append(source)
        found[file.relative_to(_PACKAGES).parts[0]] = f"{file.parent.name}.spec"
    return found
