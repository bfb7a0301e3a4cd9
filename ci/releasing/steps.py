"""The steps of a release, in order; whatever refuses leaves the repository as it was."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.version import Version

from history import GitError, git
from releasing import Refused, index, umbrella
from releasing.api import compare
from releasing.bounds import allowed, siblings
from releasing.build import build_twice, run, write_bill_of_materials, write_checksums
from releasing.changelog import collect, require_fragments, section
from releasing.trial import RUNTIME, Wheelhouse, needed_siblings, try_dependents, try_with_runtimes
from releasing.versions import PARTS, next_version, released, required_part, split_tag, tag_of, write_version
from repo import Distribution, distributions, operators


def prepare(root: Path, short: str, part: str, execute: bool, test_arguments: Sequence[str]) -> Iterator[str]:
    """Releases a distribution: everything up to the tag, and, if asked to, the commit and the tag.

    The archives, their checksums, the bill of materials and the notes are left in dist/release/<tag>, and dist/index is an index of them.

    Raises:
        Refused: a step fails.
    """
    require_clean(root)
    with worktree(root) as tree, tempfile.TemporaryDirectory() as scratch:
        found = named(tree, short)
        require_fragments(found)
        house = Wheelhouse(tree, Path(scratch))
        before = released(tree, found.name)
        version = next_version(found, before, part)
        for requirement in siblings(found, tree):
            yield f"{requirement}: {', '.join(map(str, allowed(requirement, tree)))}"
        if before:
            yield from require_part(found, house.distribution(found.name, before[-1]), part, tree)
        write_version(found, version)
        collect(tree, found, version)
        run([sys.executable, "ci/checks.py"], tree, f"{found.name} {version}: the rules of the repository are broken")

        target = root / "dist" / "release" / tag_of(found.name, version)
        yield from publishable(tree, found, house, target, test_arguments)
        yield record(root, tree, found.name, version, section(found, version), execute)


def publishable(tree: Path, found: Distribution, house: Wheelhouse, target: Path, test_arguments: Sequence[str]) -> Iterator[str]:
    """Builds, tries and describes what is in the tree, into `target`.

    Raises:
        Refused: it cannot be published.
    """
    version = Version(found.version)
    shutil.rmtree(target, ignore_errors=True)
    archives = build_twice(found, target / "packages")
    artifacts = [sys.executable, "ci/artifacts.py", str(target / "packages")]
    run(artifacts, tree, f"{found.name}: the archives are not as they should be")
    yield f"built twice to the same bytes, and checked: {', '.join(archive.name for archive in archives)}"
    with tempfile.TemporaryDirectory() as environments:
        folder = Path(environments)
        yield from try_with_runtimes(found, house, folder, target / "sbom.cdx.json", test_arguments)
        if found.name == RUNTIME:
            yield from try_dependents(found, house, folder, test_arguments)
    (target / "notes.md").write_text(section(found, version))
    write_checksums(target)
    others, runtimes = needed_siblings(found, house)
    needed = [*others, *(house.distribution(RUNTIME, newest) for newest in runtimes[-1:])]
    index.add(target.parent.parent / "index", [*archives, *map(house.wheel, needed)])


def prepare_wave(root: Path, text: str, execute: bool) -> Iterator[str]:
    """Releases npu-ops: a known-good set of what was released last, tried together, with an extra for every operator.

    Raises:
        Refused: a step fails.
    """
    require_clean(root)
    with worktree(root) as tree, tempfile.TemporaryDirectory() as scratch:
        version = umbrella.require_version(tree, text)
        house = Wheelhouse(tree, Path(scratch))
        file = umbrella.write_wave(tree, version, umbrella.last_released(house))
        yield from publishable_wave(tree, version, house, root / "dist" / "release" / tag_of(umbrella.NAME, version))
        yield record(root, tree, umbrella.NAME, version, file.read_text(), execute)


def publishable_wave(tree: Path, version: Version, house: Wheelhouse, target: Path) -> Iterator[str]:
    """Builds npu-ops for the wave in the tree, tries and describes it, into `target`.

    Raises:
        Refused: it cannot be published.
    """
    shutil.rmtree(target, ignore_errors=True)
    pins = umbrella.read_wave(umbrella.wave_file(tree, version))
    known = [house.distribution(name, pin) for name, pin in pins.items()]
    with tempfile.TemporaryDirectory() as folder:
        staged = umbrella.stage(tree, version, Path(folder) / "source")
        archives = build_twice(staged, target / "packages")
        yield f"built twice to the same bytes: {', '.join(archive.name for archive in archives)}"
        wheel = next(archive for archive in archives if archive.suffix == ".whl")
        together = umbrella.try_together(wheel, known, house, Path(folder) / "together")
        yield f"get along: {', '.join(f'{name} {pin}' for name, pin in pins.items())}"
        write_bill_of_materials(staged, str(version), together.python, target / "sbom.cdx.json")
    shutil.copy(umbrella.wave_file(tree, version), target / "notes.md")
    write_checksums(target)
    index.add(target.parent.parent / "index", [*archives, *map(house.wheel, known)])


def publish(root: Path, tag: str, test_arguments: Sequence[str]) -> Iterator[str]:
    """What the workflow of a tag runs: the same once more, from the tag as it was checked out.

    Raises:
        Refused: the tree is not that of the tag, or cannot be published.
    """
    require_clean(root)
    name, version = split_tag(tag)
    if git(root, "rev-parse", "HEAD") != git(root, "rev-parse", f"{tag}^{{commit}}"):
        raise Refused(f"HEAD is not what {tag} names; check that out")
    target = root / "dist" / "release" / tag
    with tempfile.TemporaryDirectory() as scratch:
        house = Wheelhouse(root, Path(scratch))
        if name == umbrella.NAME:
            yield from publishable_wave(root, version, house, target)
            return
        found = named(root, name.removeprefix("npu-op-"))
        if Version(found.version) != version:
            raise Refused(f"{tag} holds {found.name} {found.version}")
        yield from publishable(root, found, house, target, test_arguments)


def require_clean(root: Path) -> None:
    """Refuses a tree in which something is not committed."""
    dirty = git(root, "status", "--porcelain").splitlines()
    if dirty:
        raise Refused("\n    ".join(["the tree is dirty; commit or remove this first:", *dirty]))


def named(tree: Path, short: str) -> Distribution:
    """The distribution with that short name."""
    for found in distributions(tree):
        if found.short == short:
            return found
    raise Refused(f"no distribution is called {short!r} (there are: {', '.join(found.short for found in distributions(tree))})")


def require_part(found: Distribution, last: Distribution, part: str, tree: Path) -> Iterator[str]:
    """Refuses a part that is too low for what changed in the public interface since the last release."""
    changes = compare(found.module, last.source.parent, found.source.parent, exports_only=found in operators(tree))
    needed = required_part(Version(last.version), bool(changes.breaking), bool(changes.added))
    if PARTS.index(part) > PARTS.index(needed):
        told = [f"breaks: {change}" for change in changes.breaking] + [f"new: {change}" for change in changes.added]
        raise Refused("\n    ".join([f"{found.name}: after {last.version} this must be a {needed} release:", *told]))
    yield f"since {last.version}: {len(changes.breaking)} breaking and {len(changes.added)} new public names or parameters"


def record(root: Path, tree: Path, name: str, version: Version, notes: str, execute: bool) -> str:
    """Commits the release in the worktree, brings the branch of the maintainer to it, and tags it; says what was done.

    Raises:
        Refused: the branch has moved meanwhile.
    """
    tag = tag_of(name, version)
    if not execute:
        return f"{name} {version} could be released; nothing was changed: add --execute to commit and tag"
    git(tree, "add", "--all")
    git(tree, "commit", "--message", f"{name} {version}")
    commit = git(tree, "rev-parse", "HEAD").strip()
    try:
        git(root, "merge", "--ff-only", commit)
    except GitError as error:
        raise Refused(f"{name} {version} passed, but the branch moved meanwhile: {error}") from None
    git(root, "tag", "--annotate", tag, commit, "--message", f"{name} {version}\n\n{notes}")
    return f"tagged {tag}; publish it: git push --atomic origin HEAD {tag}"


@contextmanager
def worktree(root: Path) -> Iterator[Path]:
    """HEAD, checked out elsewhere for as long as it takes."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git(root, "worktree", "add", "--detach", str(tree), "HEAD")
        try:
            yield tree
        finally:
            git(root, "worktree", "remove", "--force", str(tree))
