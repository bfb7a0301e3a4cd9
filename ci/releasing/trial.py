"""Tries a wheel as a user would get it: with the lowest and the newest runtime that it allows, examples and tests."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from readme import examples
from releasing import Refused
from releasing.bounds import allowed, siblings
from releasing.build import build, write_bill_of_materials
from releasing.environment import Environment
from releasing.versions import released, tag_of
from repo import Distribution, distributions

RUNTIME, LAB = "npu-op-runtime", "npu-op-lab"


class Wheelhouse:
    """Wheels of every version that is released (built anew from its tag, to the same bytes) or in the tree."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree = tree
        self._folder = folder
        self._wheels: dict[Path, Path] = {}

    def tree_of(self, name: str, version: Version) -> Path:
        """The repository as it was when that version was released; the tree itself for a version that is not."""
        if version not in released(self.tree, name):
            return self.tree
        target = self._folder / "trees" / tag_of(name, version)
        if not target.exists():
            archive = subprocess.run(["git", "archive", tag_of(name, version)], cwd=self.tree, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it since 3.11.4
                files.extractall(target)
        return target

    def distribution(self, name: str, version: Version) -> Distribution:
        return next(found for found in distributions(self.tree_of(name, version)) if found.name == name)

    def wheel(self, found: Distribution) -> Path:
        if found.folder not in self._wheels:
            archives = build(found, self._folder / "wheels" / f"{found.name}-{found.version}-{len(self._wheels)}")
            self._wheels[found.folder] = next(path for path in archives if path.suffix == ".whl")
        return self._wheels[found.folder]


def needed_siblings(found: Distribution, house: Wheelhouse) -> tuple[list[Distribution], list[Version]]:
    """The operators that it needs, directly or not, each in its newest allowed version; and the runtimes that they all allow.

    Raises:
        Refused: a bound that no version satisfies.
    """
    others: dict[str, Distribution] = {}
    runtimes: list[Requirement] = []
    waiting = [found]
    while waiting:
        for requirement in siblings(waiting.pop(), house.tree):
            if requirement.name == RUNTIME:
                runtimes.append(requirement)
            elif requirement.name not in others:
                others[requirement.name] = house.distribution(requirement.name, allowed(requirement, house.tree)[-1])
                waiting.append(others[requirement.name])
    if not runtimes:
        return list(others.values()), []
    common = Requirement(f"{RUNTIME}{','.join(str(requirement.specifier) for requirement in runtimes)}")
    return list(others.values()), allowed(common, house.tree)


def try_alone(found: Distribution, house: Wheelhouse, folder: Path, runtime: Distribution | None = None) -> Environment:
    """An environment with the wheel and what it declares to need, in which it imports and its README's examples run.

    Raises:
        Refused: they do not.
    """
    environment = Environment(folder, {other.name for other in distributions(house.tree)})
    others, _ = needed_siblings(found, house)
    for installed in (*([runtime] if runtime else []), *others, found):
        environment.install(house.wheel(installed))
    environment.require_consistent()
    check = f"import {found.module} as m, sys; assert m.__file__.startswith(sys.prefix), m.__file__"
    try:
        # One process: most of the time goes into the import of torch.
        program = "\n".join([check, *examples(found.folder / "README.md")])
    except ValueError as error:
        raise Refused(f"{found.name}: {error}") from None
    refusal = f"{found.name}: the wheel does not import, or an example of the README fails"
    environment.run("-I", "-c", program, cwd=folder, refusal=refusal)
    return environment


def run_tests(found: Distribution, lab: Distribution, house: Wheelhouse, environment: Environment, arguments: Sequence[str]) -> None:
    """The tests that lie beside the distribution, on the CPU, against the installed wheel.

    Raises:
        Refused: one fails.
    """
    environment.install(house.wheel(lab), "compiler", "test")
    settings = tomllib.loads((house.tree / "pyproject.toml").read_text())
    environment.borrow(map(Requirement, settings["dependency-groups"]["test"]))
    environment.require_consistent()
    workers = ("--numprocesses=auto", "--maxprocesses=8", "-p", "no:cacheprovider")
    command = ("-m", "pytest", "--import-mode=importlib", *workers, str(found.folder / "tests"), *arguments)
    refusal = f"{found.name} {found.version}: tests fail in {environment.python.parent.parent.name}"
    environment.run(*command, cwd=found.folder, refusal=refusal, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")


def try_with_runtimes(found: Distribution, house: Wheelhouse, folder: Path, bill: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Examples and tests with the lowest and the newest runtime that it allows; says what it tried, and writes into `bill` with what.

    Raises:
        Refused: something fails.
    """
    lab = next(other for other in distributions(house.tree) if other.name == LAB)
    _, versions = needed_siblings(found, house)
    # The runtime itself needs none, and the two ends of a range may be one.
    tried: list[Version | None] = [*sorted({versions[0], versions[-1]})] if versions else [None]
    for version in tried:
        runtime = house.distribution(RUNTIME, version) if version else None
        environment = try_alone(found, house, folder / (f"with-runtime-{version}" if version else "alone"), runtime)
        if version == tried[-1]:
            # Before the tools of the tests come in.
            write_bill_of_materials(found, found.version, environment.python, bill)
        run_tests(found, lab, house, environment, arguments)
        yield f"examples and tests pass{f' with npu-op-runtime {version}' if version else ''}"


def try_dependents(runtime: Distribution, house: Wheelhouse, folder: Path, arguments: Sequence[str]) -> Iterator[str]:
    """The last release of every operator on a runtime that is about to be released, with the tests of that release.

    Raises:
        Refused: an operator that allows this runtime fails on it.
    """
    for other in distributions(house.tree):
        versions = released(house.tree, other.name)
        if other.name in (RUNTIME, LAB) or not versions:
            continue
        operator = house.distribution(other.name, versions[-1])
        if runtime.version not in operator.requirements[RUNTIME].specifier:
            yield f"{operator.name} {operator.version} does not allow this runtime"
            continue
        then = house.tree_of(other.name, versions[-1])
        labs = [lab for root in (then, house.tree) for lab in distributions(root) if lab.name == LAB]
        lab = next(lab for lab in labs if runtime.version in lab.requirements[RUNTIME].specifier)
        environment = try_alone(operator, house, folder / f"{operator.name}-{operator.version}", runtime)
        run_tests(operator, lab, house, environment, arguments)
        yield f"{operator.name} {operator.version} works with it"
