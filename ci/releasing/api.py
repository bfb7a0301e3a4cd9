"""The public interface: what a release changes in it.

It is compared with the tree at the tag of the last release, read by griffe without importing anything: the tag is the snapshot, and
no file of signatures has to be kept in step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import griffe


@dataclass(frozen=True)
class Changes:
    """Between two releases: what callers may trip over, and what is new."""

    breaking: list[str]
    added: list[str]


def compare(module: str, old: Path, new: Path, *, exports_only: bool) -> Changes:
    """The changes of `module` from the source folder `old` to `new`.

    Args:
        exports_only: public is what `__all__` of the package names, as in an operator; else every name of every module that has no
            leading underscore, as in the runtime, whose modules operators import.
    """
    before, after = (_load(module, source, exports_only) for source in (old, new))
    breakages = griffe.find_breaking_changes(before, after)
    # The value of a constant is no part of the interface: __version__ differs in every release, tables grow.
    breaking = [_told(breakage) for breakage in breakages if breakage.kind is not griffe.BreakageKind.ATTRIBUTE_CHANGED_VALUE]
    return Changes(breaking, sorted(set(_surface(after)) - set(_surface(before))))


def _load(module: str, source: Path, exports_only: bool) -> griffe.Module:
    loaded = griffe.load(module, search_paths=[source], allow_inspection=False, resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    if exports_only:
        for name in set(loaded.members) - set(map(str, loaded.exports or [])):
            del loaded.members[name]
    return loaded


def _told(breakage: griffe.Breakage) -> str:
    values = "" if breakage.kind is griffe.BreakageKind.OBJECT_REMOVED else f" ({breakage.old_value} -> {breakage.new_value})"
    return f"{breakage.obj.path}: {str(breakage).lower()}{values}"


def _surface(scope: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Paths of public objects, and of the parameters of functions."""
    for member in scope.members.values():
        if member.is_public:
            yield member.path
            yield from (f"{member.path}({parameter.name})" for parameter in getattr(member, "parameters", ()))
            yield from _surface(member)
