"""Bounds between distributions of this repository, and the versions that satisfy them."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from releasing import Refused
from releasing.versions import released
from repo import Distribution, distributions


def siblings(found: Distribution, tree: Path) -> list[Requirement]:
    """What it needs of this repository."""
    names = {other.name for other in distributions(tree)}
    return [requirement for name, requirement in found.requirements.items() if name in names]


def allowed(requirement: Requirement, tree: Path) -> list[Version]:
    """The released and in-tree versions within a bound, lowest first.

    Raises:
        Refused: there is none.
    """
    in_tree = next(other for other in distributions(tree) if other.name == requirement.name)
    known = sorted({*released(tree, requirement.name), Version(in_tree.version)})
    within = list(requirement.specifier.filter(known, prereleases=True))
    if not within:
        raise Refused(f"{requirement} is satisfied by no version of {requirement.name} (there are: {', '.join(map(str, known))})")
    return within
