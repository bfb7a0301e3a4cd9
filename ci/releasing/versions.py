"""Versions: which were released, which comes next, and where it is written."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import InvalidVersion, Version

from history import git
from releasing import Refused
from repo import Distribution

PARTS = ("major", "minor", "patch")


def tag_of(name: str, version: Version) -> str:
    """`npu-op-geglu-v0.2.0`."""
    return f"{name}-v{version}"


def split_tag(tag: str) -> tuple[str, Version]:
    """Name and version of a release tag.

    Raises:
        Refused: it is none.
    """
    name, _, version = tag.rpartition("-v")
    try:
        return name, Version(version)
    except InvalidVersion:
        raise Refused(f"{tag!r} is no tag of a release, <name>-v<version>") from None


def released(root: Path, name: str) -> list[Version]:
    """The released versions of a distribution, oldest first: its tags."""
    tags = git(root, "tag", "--list", f"{name}-v*").split()
    # npu-op-rope-v2-v1.0 is not of npu-op-rope.
    return sorted(split_tag(tag)[1] for tag in tags if re.fullmatch(r"\d+(\.\d+)*", tag.removeprefix(f"{name}-v")))


def next_version(found: Distribution, before: list[Version], part: str) -> Version:
    """The version after the last released one; the first release counts from 0.0.0.

    Raises:
        Refused: it would go back behind the one in `__about__.py`.
    """
    last = before[-1] if before else Version("0.0.0")
    position = PARTS.index(part)
    numbers = [*last.release, 0, 0][:3]
    version = Version(".".join(map(str, [*numbers[:position], numbers[position] + 1, *[0] * (2 - position)])))
    if version < Version(found.version):
        about = found.about.relative_to(found.folder)
        raise Refused(
            f"{found.name}: a {part} release after {last if before else 'none'} would be {version}, which goes back behind the"
            f" {found.version} of {about}; name a higher part, or mend that file"
        )
    return version


def write_version(found: Distribution, version: Version) -> None:
    """Puts the version into `__about__.py`."""
    text, changed = re.subn(r"^__version__ = .*$", f'__version__ = "{version}"', found.about.read_text(), flags=re.MULTILINE)
    if changed != 1:
        raise Refused(f"{found.about}: must assign __version__ once")
    found.about.write_text(text)


def required_part(old: Version, breaking: bool, added: bool) -> str:
    """The least part that has to grow: semantic versioning, where before 1.0 the minor version is what may break."""
    stable = old >= Version("1.0")
    if breaking:
        return "major" if stable else "minor"
    return "minor" if added and stable else "patch"
