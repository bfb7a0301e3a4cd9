"""Finds the installed operators: each names its spec in the entry point group `npu_ops`."""

from __future__ import annotations

from importlib.metadata import entry_points

from npu_op_runtime.spec import OperatorSpec

_GROUP = "npu_ops"


def names() -> list[str]:
    """Names of the installed operators, sorted."""
    return sorted(entry_points(group=_GROUP).names)


def load(name: str) -> OperatorSpec:
    """The spec of an installed operator.

    Raises:
        ValueError: no operator of that name; the message lists the installed ones.
    """
    for entry in entry_points(group=_GROUP, name=name):
        spec = entry.load()
        assert isinstance(spec, OperatorSpec)
        return spec
    raise ValueError(f"operator must be one of the installed ones: {', '.join(names()) or 'none'} (got {name!r})")
