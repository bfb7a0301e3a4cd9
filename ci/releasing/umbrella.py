"""npu-ops: a distribution without code that has an extra for every operator, generated for each wave of releases.

A wave is a file of exact versions that were tried together, `umbrella/waves/<version>.txt`, which pip takes as constraints. The
metadata of npu-ops follows from it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from releasing import Refused
from releasing.environment import Environment
from releasing.trial import LAB, RUNTIME, Wheelhouse
from releasing.versions import released
from repo import Distribution, distributions

NAME = "npu-ops"


def require_version(tree: Path, text: str) -> Version:
    """The version of a wave: year and month, and a number for further ones of that month.

    Raises:
        Refused: it is none, or not after the last.
    """
    if not re.fullmatch(r"20\d\d\.([1-9]|1[0-2])(\.[1-9]\d*)?", text):
        raise Refused(f"a wave is called by year and month, such as 2026.12, a further one of that month 2026.12.1 (got {text!r})")
    before = released(tree, NAME)
    if before and Version(text) <= before[-1]:
        raise Refused(f"wave {text} does not come after {before[-1]}")
    return Version(text)


def last_released(house: Wheelhouse) -> list[Distribution]:
    """The runtime and the operators, each as it was released last; what was never released is left out.

    Raises:
        Refused: they do not fit together.
    """
    names = [found.name for found in distributions(house.tree) if found.name != LAB]
    known = {name: house.distribution(name, versions[-1]) for name in names if (versions := released(house.tree, name))}
    if len(known) < 2 or RUNTIME not in known:
        raise Refused(f"a wave needs a released runtime and a released operator (released are: {', '.join(known) or 'none'})")
    for found in known.values():
        for name, requirement in found.requirements.items():
            if name in names and (name not in known or known[name].version not in requirement.specifier):
                got = known[name].version if name in known else "none"
                raise Refused(f"{found.name} {found.version} requires {requirement}, but the last released {name} is {got}")
    return list(known.values())


def write_wave(tree: Path, version: Version, known: list[Distribution]) -> Path:
    """Writes the file of a wave."""
    file = wave_file(tree, version)
    file.parent.mkdir(parents=True, exist_ok=True)
    pins = "".join(f"{found.name}=={found.version}\n" for found in known)
    file.write_text(f"# Versions that were tried together for {NAME} {version}. Generated: nox -s wave -- {version}\n{pins}")
    return file


def wave_file(tree: Path, version: Version) -> Path:
    return tree / "umbrella" / "waves" / f"{version}.txt"


def read_wave(file: Path) -> dict[str, Version]:
    """The pins of a wave."""
    pins = [Requirement(line) for line in file.read_text().splitlines() if not line.startswith("#")]
    return {pin.name: Version(next(iter(pin.specifier)).version) for pin in pins}


def compatible(name: str, version: Version) -> str:
    """A range from a version to the next that may break: `npu-op-geglu>=0.3.1,<0.4`."""
    end = f"{version.major + 1}" if version.major else f"0.{version.minor + 1}"
    return f"{name}>={version},<{end}"


def stage(tree: Path, version: Version, folder: Path) -> Distribution:
    """Writes the source of npu-ops for a wave: metadata, README, licence and the file of the wave."""
    pins = read_wave(wave_file(tree, version))
    ranges = {name.removeprefix("npu-op-"): compatible(name, pin) for name, pin in pins.items()}
    runtime = ranges.pop("runtime")
    extras = {name: [needed] for name, needed in ranges.items()} | {"all": list(ranges.values())}
    extras |= {stack: [f"{RUNTIME}[{stack}]"] for stack in ("ascend", "cuda")}
    project = {
        "name": NAME,
        "version": str(version),
        "description": "Fused Triton operators for Huawei Ascend NPUs: an extra for every operator.",
        "readme": "README.md",
        "requires-python": ">=3.9",
        "license": "Apache-2.0",
        "license-files": ["LICENSE"],
        "keywords": ["ascend", "npu", "triton"],
        "dependencies": [runtime],
    }
    folder.mkdir(parents=True)
    # Strings and lists of strings are written the same in JSON and TOML.
    tables: dict[str, dict[str, Any]] = {
        "build-system": {"requires": ["hatchling>=1.27"], "build-backend": "hatchling.build"},
        "project": project,
        "project.optional-dependencies": extras,
    }
    lines = [
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items()) for table, fields in tables.items()
    ]
    (folder / "pyproject.toml").write_text("\n".join([*lines, "[tool.hatch.build.targets.wheel]\nbypass-selection = true\n"]))
    for file in (tree / "umbrella" / "README.md", tree / "LICENSE", wave_file(tree, version)):
        shutil.copy(file, folder)
    return Distribution(folder)


def try_together(wheel: Path, known: list[Distribution], house: Wheelhouse, folder: Path) -> Environment:
    """An environment with `npu-ops[all]` from its wheel and every wheel of its wave, in which the examples of all READMEs run.

    Raises:
        Refused: they do not get along.
    """
    environment = Environment(folder, {found.name for found in distributions(house.tree)})
    for found in known:
        environment.install(house.wheel(found))
    environment.install(wheel, "all")
    environment.require_consistent()
    for found in known:
        readme = [str(house.tree / "ci" / "readme.py"), str(found.folder / "README.md")]
        environment.run(*readme, cwd=folder, refusal=f"{found.name} {found.version}: an example of the README fails beside the others")
    return environment
