"""Rules of the repository that no other tool checks. Run: python ci/checks.py

Every rule takes a root, so that its tests can break a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from catalogue import catalogued
from history import git
from kernel_rules import violations
from repo import ROOT, Distribution, distributions, operators

# git's modes of what is no file of its own.
LINKS = {"120000": "a symbolic link", "160000": "a submodule"}


def licenses(root: Path) -> Iterator[str]:
    """Every distribution carries its own copy of the licence: a path out of the folder would end up inside the wheel."""
    text = (root / "LICENSE").read_bytes()
    for found in distributions(root):
        copy = found.folder / "LICENSE"
        if not copy.exists() or copy.read_bytes() != text:
            yield f"{copy}: must be a copy of the LICENSE at the root"


def files(root: Path) -> Iterator[str]:
    """What every distribution, and every operator, consists of."""
    for found in distributions(root):
        expected = ["README.md", "CHANGELOG.md", "changelog.d", f"src/{found.module}/py.typed", "tests"]
        if found in operators(root):
            sources = ("__init__", "kernel", "op", "module", "reference", "spec")
            expected += [f"src/{found.module}/{name}.py" for name in sources]
            expected.append(f"tests/test_{found.short}.py")
        for name in expected:
            if not (found.folder / name).exists():
                yield f"{found.folder / name}: missing"


def sources(root: Path) -> Iterator[str]:
    """A distribution holds its own module, whole: what lies elsewhere, or shadows another's, affects what ci/affected.py cannot know."""
    for found in distributions(root):
        for path in sorted(found.source.parent.glob("*")):
            if path != found.source and not path.name.startswith(("__pycache__", ".")) and path.suffix != ".egg-info":
                yield f"{path}: beside {found.module}, which alone may lie there"
    for entry in filter(None, git(root, "ls-files", "--stage", "-z", "--", "packages", "runtime").split("\0")):
        mode, name = entry.partition(" ")[0], entry.partition("\t")[2]
        if mode in LINKS:
            yield f"{root / name}: {LINKS[mode]}; what it points to changes without it: copy that"


def metadata(root: Path) -> Iterator[str]:
    """Names derive from the folder; an operator is found by its entry point and needs torch and a runtime that is in range."""
    runtime = next(found for found in distributions(root) if found.name == "npu-op-runtime")
    for found in distributions(root):
        if found != runtime:
            yield from _runtime_range(found, runtime)
    for operator in operators(root):
        expected = {
            "name": f"npu-op-{operator.folder.name}",
            "license": "Apache-2.0",
            "license-files": ["LICENSE"],
            "optional-dependencies": {extra: [f"npu-op-runtime[{extra}]"] for extra in ("ascend", "cuda")},
            "entry-points": {"npu_ops": {operator.folder.name: f"{operator.module}.spec:SPEC"}},
        }
        for key, value in expected.items():
            if operator.project.get(key) != value:
                yield f"{operator.folder / 'pyproject.toml'}: {key} must be {value} (got {operator.project.get(key)})"
        siblings = {other.name for other in operators(root)}
        foreign = sorted(set(operator.requirements) - siblings - {"torch", "npu-op-runtime"})
        if foreign:
            yield f"{operator.folder / 'pyproject.toml'}: dependencies besides torch, npu-op-runtime and operators: {', '.join(foreign)}"


def _runtime_range(found: Distribution, runtime: Distribution) -> Iterator[str]:
    file = found.folder / "pyproject.toml"
    try:
        lowest = found.lowest_runtime
    except ValueError as error:
        yield f"{file}: {error}"
        return
    if runtime.version not in found.requirements[runtime.name].specifier:
        yield f"{file}: the runtime in this tree is {runtime.version}, outside of the range from {lowest}"


def kernels(root: Path) -> Iterator[str]:
    """What a kernel may not use on an NPU (see kernel_rules)."""
    for operator in operators(root):
        file = operator.source / "kernel.py"
        if file.exists():
            yield from violations(file)


def catalogue(root: Path) -> Iterator[str]:
    """README lists the operators that there are."""
    if (root / "README.md").read_text() != catalogued(root):
        yield f"{root / 'README.md'}: the table of operators is not what their metadata says; run: python ci/catalogue.py"


def command(root: Path) -> Iterator[str]:
    """README gives the command that CI runs."""
    (run,) = (line.strip() for line in (root / ".ci" / "run").read_text().splitlines() if "python3 -m nox" in line)
    if run not in (root / "README.md").read_text().splitlines():
        yield f"{root / 'README.md'}: does not give the command of .ci/run: {run}"


RULES = (licenses, files, sources, metadata, kernels, catalogue, command)


def main() -> int:
    problems = [problem for rule in RULES for problem in rule(ROOT)]
    for problem in problems:
        print(problem.removeprefix(f"{ROOT}/"))
    print(f"{len(problems)} problems in {len(distributions())} distributions")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
