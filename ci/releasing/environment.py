"""Clean environments: they hold the wheels under trial and what these declare to need, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Collection, Iterable, Iterator
from email import message_from_bytes
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from releasing import Refused
from releasing.build import run


class Environment:
    """A virtual environment that borrows other people's packages from the one that runs this.

    Borrowed (by links) is the closure of what is declared and no more, so that a requirement that a wheel forgets is missing here as it
    would be for a user, yet no torch is downloaded for every trial.
    """

    def __init__(self, folder: Path, own: Collection[str]) -> None:
        """`own`: names of the distributions of this repository, which are never borrowed."""
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self._own = {canonicalize_name(name) for name in own}
        self._packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        self._seen: set[tuple[str, str]] = set()

    def borrow(self, requirements: Iterable[Requirement]) -> None:
        """Links what third parties' requirements ask for, with what that needs in turn.

        Raises:
            Refused: the running environment has it not, or in another version.
        """
        waiting = [(requirement, extra) for requirement in requirements for extra in ("", *requirement.extras)]
        while waiting:
            requirement, extra = waiting.pop()
            key = canonicalize_name(requirement.name), extra
            if key in self._seen or key[0] in self._own:
                continue
            self._seen.add(key)
            if key[0] == "triton" and not _is_installed("triton"):
                requirement = self._stand_in(requirement)
            found = _installed(requirement)
            self._link(found)
            waiting += [(needed, inner) for needed in _selected(found.requires or [], extra) for inner in ("", *needed.extras)]

    def _stand_in(self, requirement: Requirement) -> Requirement:
        """Lets triton-ascend stand for the triton that a CUDA build of torch asks for: both write one folder."""
        version = next((clause.version for clause in requirement.specifier if clause.operator == "=="), "0")
        information = self._packages / f"triton-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")
        return Requirement("triton-ascend")

    def _link(self, found: Distribution) -> None:
        if found.files is None:
            raise Refused(f"{found.name}: the running environment does not list its files")
        for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            link = self._packages / top
            if not link.is_symlink():
                link.symlink_to(Path(str(found.locate_file(top))))

    def install(self, wheel: Path, *extras: str) -> None:
        """Installs a wheel of this repository and borrows what it declares beyond it, extras included; no index is asked."""
        command = [sys.executable, "-m", "pip", "--isolated", "--python", str(self.python), "install", "--no-deps", "--no-index"]
        run([*command, "--disable-pip-version-check", str(wheel)], wheel.parent, f"{wheel.name}: cannot be installed")
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            lines = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
        self.borrow(needed for extra in ("", *extras) for needed in _selected(lines, extra))

    def require_consistent(self) -> None:
        """Refuses an environment in which a declared requirement is missing or out of its bounds."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "check", "--disable-pip-version-check"]
        run(command, Path.cwd(), "the clean environment does not hold what the metadata asks for")

    def run(self, *arguments: str, cwd: Path, refusal: str, **environment: str) -> None:
        """Runs Python in it, isolated from the settings of whoever started this."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NPU_OP_", "TRITON_"))}
        done = subprocess.run([str(self.python), *arguments], cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(f"{refusal}\n$ python {' '.join(arguments)}\n{done.stdout}{done.stderr}".rstrip())


def _selected(lines: Iterable[str], extra: str) -> Iterator[Requirement]:
    """The requirements that apply here, with an extra or ("") without."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _installed(requirement: Requirement) -> Distribution:
    if not _is_installed(requirement.name):
        raise Refused(f"{requirement.name} is needed, but is not in the environment that runs the release ({sys.prefix})")
    found = distribution(requirement.name)
    if not requirement.specifier.contains(found.version, prereleases=True):
        raise Refused(f"{requirement} is needed, but the environment that runs the release has {found.version}")
    return found
