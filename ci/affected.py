"""Which packages a change affects: CI tests those and no others. Standard library only: it runs before anything is installed.

Run: python ci/affected.py (--base main | --all) [--why | --json | --matrix]

Compared is the working tree, untracked files included, with the commit where it left the base. What each path affects is in RULES;
a path that no rule claims is an error, so that a new folder cannot go untested.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from history import GitError, git

ROOT = Path(__file__).resolve().parent.parent

# GitHub refuses a matrix of more jobs; cutting it off would leave packages untested.
MATRIX_LIMIT = 256

# Folders whose subfolders are packages.
PARENTS = ("packages", "runtime")

ALL, DOCS, LINT = "all", "docs", "lint"

# What a path affects besides itself: everything, the site, or nothing that lint does not see. A name that ends in / is a folder.
# packages/<op>/ is no rule: it affects the package and what needs it.
RULES: Mapping[str, str] = {
    "runtime/": ALL,
    "ci/": ALL,
    ".ci/": ALL,
    ".github/": ALL,
    "noxfile.py": ALL,
    "pyproject.toml": ALL,
    "LICENSE": ALL,
    "docs/": DOCS,
    "mkdocs.yml": DOCS,
    "README.md": DOCS,
    "CONTRIBUTING.md": DOCS,
    # hatch leaves out of an archive what git would ignore, tracked or not.
    ".gitignore": ALL,
    "umbrella/": LINT,
}

# Pages and programs whose code a test runs: each is affected by the packages that it imports.
EXAMPLES = ("README.md", "docs/**/*.md", "docs/**/*.py")


class AffectedError(Exception):
    """The question cannot be answered; the message says what to do."""


@dataclass(frozen=True)
class Package:
    """A distribution: an operator under packages/ or a part of the runtime under runtime/."""

    name: str
    folder: str
    needs: frozenset[str]

    @property
    def short(self) -> str:
        """Name in sessions, `rmsnorm`."""
        return self.name.removeprefix("npu-op-")


@dataclass
class Affected:
    """What to run, each with its reasons: packages by short name, examples by path, the site, and what affects them all."""

    packages: dict[str, list[str]] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    docs: list[str] = field(default_factory=list)
    everything: list[str] = field(default_factory=list)

    def add(self, short: str, reason: str) -> None:
        self.packages.setdefault(short, []).append(reason)

    def explained(self) -> dict[str, list[str]]:
        named = {**dict(sorted(self.packages.items())), **dict(sorted(self.examples.items()))}
        sections = {"everything": self.everything, **named, "docs": self.docs}
        return {name: reasons for name, reasons in sections.items() if reasons}


def _names(listing: str) -> list[str]:
    return [name for name in listing.split("\0") if name]


def merge_base(root: Path, base: str) -> str:
    """The commit where the working tree left `base`.

    Raises:
        AffectedError: the base is unknown here, or has no common history with HEAD, as in a shallow clone.
    """
    shallow = git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
    advice = "this clone is shallow: run `git fetch --unshallow`, or check out with fetch-depth: 0" if shallow else "fetch it first"
    try:
        commit = git(root, "rev-parse", "--verify", "--end-of-options", f"{base}^{{commit}}").strip()
    except GitError:
        raise AffectedError(f"base {base!r} is no commit of this clone; {advice}") from None
    try:
        return git(root, "merge-base", commit, "HEAD").strip()
    except GitError:
        raise AffectedError(f"HEAD and base {base!r} have no common commit in this clone{f'; {advice}' if shallow else ''}") from None


def changed(root: Path, commit: str) -> list[str]:
    """Every path in which the working tree differs from `commit`; a rename counts at both ends."""
    # --no-renames: the old name is listed as deleted, the new one as added. -z: names as they are, whatever they hold.
    whatever_the_settings = ("--no-renames", "--no-relative", "--no-ext-diff", "--ignore-submodules=none")
    tracked = git(root, "diff", "--name-only", *whatever_the_settings, "-z", commit, "--")
    return sorted({*_names(tracked), *_names(git(root, "ls-files", "--others", "--exclude-standard", "-z"))})


def packages(root: Path, commit: str | None = None) -> dict[str, Package]:
    """The packages by folder, as they are in the working tree or were in `commit`."""
    if commit is None:
        texts = {
            file.relative_to(root).as_posix(): _text(root, file) for parent in PARENTS for file in root.glob(f"{parent}/*/pyproject.toml")
        }
    else:
        listed = _names(git(root, "ls-tree", "-r", "--name-only", "-z", commit, "--", *PARENTS))
        files = [name for name in listed if name.count("/") == 2 and name.endswith("/pyproject.toml")]
        texts = {name: git(root, "show", f"{commit}:{name}") for name in files}
    found = [_package(name, text) for name, text in texts.items()]
    return {package.folder: package for package in found}


def _text(root: Path, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AffectedError(f"{file.relative_to(root).as_posix()}: cannot be read as text ({error})") from None


def _package(file: str, text: str) -> Package:
    try:
        settings = tomllib.loads(text)
        project = settings["project"]
        name = str(project["name"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise AffectedError(f"{file}: no [project] with a name can be read from it ({error})") from None
    groups = [
        project.get("dependencies", []),
        *project.get("optional-dependencies", {}).values(),
        *settings.get("dependency-groups", {}).values(),
    ]
    # An entry of a dependency group may be a table that includes another group.
    needs = {_normal(requirement) for group in groups for requirement in group if isinstance(requirement, str)}
    return Package(_normal(name), str(PurePosixPath(file).parent), frozenset(needs - {_normal(name)}))


def _normal(requirement: str) -> str:
    """The normalised name that a requirement starts with."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def examples(root: Path) -> dict[str, frozenset[str]]:
    """The examples of the working tree by path, with the distributions that their lines import; what imports none of ours is none."""
    files = sorted({file for pattern in EXAMPLES for file in root.glob(pattern)})
    # Below an `if`, in a list, and after another module, too.
    lines = {file: re.findall(r"^\s*(?:from|import)\s.*", _text(root, file), re.MULTILINE) for file in files}
    needs = {file: re.findall(r"\bnpu_op_\w+", "\n".join(found)) for file, found in lines.items()}
    return {file.relative_to(root).as_posix(): frozenset(map(_normal, modules)) for file, modules in needs.items() if modules}


def _rule(path: str) -> str | None:
    return next((scope for prefix, scope in RULES.items() if path == prefix or (prefix.endswith("/") and path.startswith(prefix))), None)


def affected(
    paths: Iterable[str], before: Mapping[str, Package], after: Mapping[str, Package], shown: Mapping[str, frozenset[str]]
) -> Affected:
    """What a change of these paths affects, given the packages by folder before and after it, and what the examples import.

    Raises:
        AffectedError: paths that no rule claims.
    """
    result = Affected()
    direct: dict[str, list[str]] = {}
    unclaimed = []
    for path in paths:
        folder = "/".join(path.split("/")[:2])
        scope = _rule(path)
        if folder.startswith("packages/") and folder != path and (folder in before or folder in after):
            direct.setdefault(folder, []).append(f"{path} changed")
        elif scope == ALL:
            result.everything.append(f"{path} changed")
        elif scope == DOCS:
            result.docs.append(f"{path} changed")
            if path in shown:
                result.examples[path] = [f"{path} changed"]
        elif scope is None:
            unclaimed.append(path)
    if unclaimed:
        known = ", ".join(["packages/<op>/", *RULES])
        raise AffectedError(
            f"no rule says what these paths affect: {', '.join(map(repr, unclaimed))} (known: {known}); add one to ci/affected.py"
        )
    if result.everything:
        return _everything(after, shown, result.everything)
    for folder, reasons in direct.items():
        if folder in after:
            for reason in reasons:
                result.add(after[folder].short, reason)
    for package, needed in _dependents(direct, before, after):
        result.add(package.short, f"needs {needed}, which is affected")
    # A package that is gone is affected too, for who still imports it.
    names = {f"npu-op-{short}" for short in result.packages} | {before[folder].name for folder in direct if folder in before}
    for path, imported in shown.items():
        for name in sorted(imported & names):
            result.examples.setdefault(path, []).append(f"imports {name}, which is affected")
    return result


def _everything(after: Mapping[str, Package], shown: Iterable[str], reasons: list[str]) -> Affected:
    told = ["everything is affected"]
    return Affected({package.short: told for package in after.values()}, dict.fromkeys(shown, told), told, reasons)


def _dependents(folders: Iterable[str], before: Mapping[str, Package], after: Mapping[str, Package]) -> Iterator[tuple[Package, str]]:
    """Packages that need one of `folders`, directly or not, before or after the change; each with the need that brought it in."""
    needs = {folder: package.needs | (before[folder].needs if folder in before else frozenset()) for folder, package in after.items()}
    waiting = [package for folder in folders for package in (before.get(folder), after.get(folder)) if package]
    seen = {package.folder for package in waiting}
    while waiting:
        name = waiting.pop().name
        for folder, package in after.items():
            if name in needs[folder] and folder not in seen:
                seen.add(folder)
                waiting.append(package)
                yield package, name


def detect(root: Path, base: str) -> Affected:
    """What the working tree under `root` affects, compared with where it left `base`."""
    commit = merge_base(root, base)
    paths, after, shown = changed(root, commit), packages(root), examples(root)
    try:
        before = packages(root, commit)
    except AffectedError as error:  # of the base: what mends it must not fail for it
        return _everything(after, shown, [f"in the base, {error}"])
    return affected(paths, before, after, shown)


def matrix(found: Affected) -> dict[str, list[dict[str, str]]]:
    """A GitHub matrix with a job for each package.

    Raises:
        AffectedError: more jobs than GitHub takes.
    """
    if len(found.packages) > MATRIX_LIMIT:
        raise AffectedError(
            f"{len(found.packages)} packages are affected, but a GitHub matrix holds {MATRIX_LIMIT} jobs: split the workflow"
        )
    return {"include": [{"package": short} for short in sorted(found.packages)]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    against = parser.add_mutually_exclusive_group(required=True)
    against.add_argument("--base", help="branch, tag or commit that the change is compared with")
    against.add_argument("--all", action="store_true", help="no comparison: everything, as every night")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--why", action="store_true", help="every reason for every package")
    form.add_argument("--json", action="store_true", help="packages, examples, docs, whether it is everything, and the reasons")
    form.add_argument("--matrix", action="store_true", help="a matrix for a GitHub workflow")
    options = parser.parse_args()
    # A file name may hold bytes that no encoding knows.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        found = _everything(packages(ROOT), examples(ROOT), ["it was asked for"]) if options.all else detect(ROOT, options.base)
        if options.json:
            named = {"packages": sorted(found.packages), "examples": sorted(found.examples)}
            print(json.dumps({**named, "docs": bool(found.docs), "all": bool(found.everything), "why": found.explained()}))
        elif options.matrix:
            print(json.dumps(matrix(found)))
        else:
            for name, reasons in found.explained().items():
                print("\n    ".join([f"{name}:", *reasons]) if options.why else name)
    except (AffectedError, GitError) as error:
        print(f"affected: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
