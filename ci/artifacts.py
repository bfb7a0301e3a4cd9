"""Checks built wheels and sdists before anyone installs them. Run: python ci/artifacts.py dist/rmsnorm"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from repo import ROOT, distributions


def contents(archive: Path) -> dict[str, bytes]:
    """The files of a wheel or sdist by name; those of an sdist without their common top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    members: dict[str, bytes] = {}
    with tarfile.open(archive) as sdist:
        for member in sdist.getmembers():
            file = sdist.extractfile(member)
            if file is None:
                raise ValueError(f"{archive}: {member.name} is no plain file")
            members[member.name.removeprefix(archive.name.removesuffix(".tar.gz") + "/")] = file.read()
    return members


def problems(archive: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    """What is wrong with the contents of one archive of this repository."""
    module, version = archive.name.removesuffix(".tar.gz").split("-")[:2]
    distribution = next(found for found in distributions() if found.module == module)
    unsafe = [name for name in files if name.startswith("/") or ".." in PurePosixPath(name).parts]
    if unsafe:
        yield f"members outside of the archive: {', '.join(unsafe)}"

    info, root = (f"{module}-{version}.dist-info/", "") if archive.suffix == ".whl" else ("", "src/")
    license_file, metadata_file = (f"{info}licenses/LICENSE", f"{info}METADATA") if info else ("LICENSE", "PKG-INFO")
    if files.get(license_file) != (ROOT / "LICENSE").read_bytes():
        yield f"{license_file} must be the licence of the repository"
    sources = {f"{root}{path.relative_to(distribution.source.parent)}" for path in distribution.source.rglob("*") if _shipped(path)}
    missing = sorted(sources - set(files))
    if missing:
        yield f"not packed: {', '.join(missing)}"
    foreign = sorted(name for name in files if info and not name.startswith((f"{module}/", info)))
    if foreign:
        yield f"outside of {module}: {', '.join(foreign)}"

    metadata = message_from_bytes(files.get(metadata_file, b""))
    if metadata["Version"] != distribution.version or metadata["License-Expression"] != "Apache-2.0":
        yield f"{metadata_file} must say version {distribution.version} and licence Apache-2.0"
    # The bytes: undecoded, the email parser replaces what is not ASCII.
    if metadata.get_payload(decode=True) != (distribution.folder / "README.md").read_bytes():
        yield f"{metadata_file} must carry the README"
    required = _normalised(Requirement(line) for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line)
    declared = _normalised(distribution.requirements.values())
    if required != declared:
        yield f"{metadata_file} must require {', '.join(declared)} (got {', '.join(required)})"


def _normalised(requirements: Iterable[Requirement]) -> list[str]:
    """Comparable: a back end writes ml-dtypes for ml_dtypes."""
    return sorted(f"{canonicalize_name(requirement.name)}{requirement.specifier}" for requirement in requirements)


def _shipped(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def main(folder: str) -> int:
    archives = sorted([*Path(folder).glob("*.whl"), *Path(folder).glob("*.tar.gz")])
    found = [f"{archive}: {problem}" for archive in archives for problem in problems(archive, contents(archive))]
    for line in found or [f"{archive}: as it should be" for archive in archives]:
        print(line)
    return int(bool(found) or not archives)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
