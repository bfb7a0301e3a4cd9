"""The parts of a release, each with what it must refuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from releasing import Refused, index
from releasing.api import Changes, compare
from releasing.bounds import allowed
from releasing.build import build, build_twice, write_checksums
from releasing.changelog import collect, require_fragments, section
from releasing.environment import Environment
from releasing.steps import named, publish, record, require_part, worktree
from releasing.trial import Wheelhouse, try_alone
from releasing.versions import next_version, released, required_part, split_tag, write_version
from repo import ROOT, Distribution, operators
from repositories import ENVIRONMENT, commit, git_in, operator, write

GEGLU = next(found for found in operators() if found.short == "geglu")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    operator(tmp_path, "one", "0.1.0")
    git_in(tmp_path)("init", "--initial-branch", "main")
    commit(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("before", "in_tree", "part", "after"),
    [
        ([], "0.1.0", "minor", "0.1.0"),
        ([], "0.1.0", "major", "1.0.0"),
        (["0.1.0"], "0.1.0", "patch", "0.1.1"),
        (["0.1.0", "0.9.4"], "0.9.4", "minor", "0.10.0"),
        (["1.2.3"], "1.2.3", "major", "2.0.0"),
    ],
)
def test_the_version_follows_the_last_released_one(root: Path, before: list[str], in_tree: str, part: str, after: str) -> None:
    found = operator(root, "one", in_tree)
    assert str(next_version(found, [Version(version) for version in before], part)) == after


@pytest.mark.parametrize(("before", "part"), [([], "patch"), (["0.1.0"], "patch"), (["0.1.0"], "minor")])
def test_a_version_never_goes_back(root: Path, before: list[str], part: str) -> None:
    found = operator(root, "one", "0.3.0")
    with pytest.raises(Refused, match="goes back behind the 0.3.0 of src/npu_op_one/__about__.py"):
        next_version(found, [Version(version) for version in before], part)


def test_released_versions_are_the_tags_of_that_name(root: Path) -> None:
    for tag in ("npu-op-one-v0.10.0", "npu-op-one-v0.9.0", "npu-op-one-v0.9.0-draft", "npu-op-one-v2-v5.0", "npu-op-other-v3.0", "v4.0"):
        git_in(root)("tag", tag)
    assert list(map(str, released(root, "npu-op-one"))) == ["0.9.0", "0.10.0"]
    assert list(map(str, released(root, "npu-op-one-v2"))) == ["5.0"]


def test_a_tag_is_a_name_and_a_version() -> None:
    assert split_tag("npu-op-llama4-rope-v0.2.0") == ("npu-op-llama4-rope", Version("0.2.0"))
    with pytest.raises(Refused, match="'geglu' is no tag of a release"):
        split_tag("geglu")


def test_the_version_is_written_where_hatch_reads_it(root: Path) -> None:
    found = operator(root, "one", "0.1.0")
    write_version(found, Version("0.2.0"))
    assert found.version == "0.2.0"
    assert found.about.read_text() == '"""Version."""\n\n__version__ = "0.2.0"\n'
    found.about.write_text("")
    with pytest.raises(Refused, match="must assign __version__ once"):
        write_version(found, Version("0.3.0"))


@pytest.mark.parametrize(
    ("old", "breaking", "added", "part"),
    [
        ("0.3.1", True, True, "minor"),
        ("0.3.1", False, True, "patch"),
        ("0.3.1", False, False, "patch"),
        ("1.3.1", True, False, "major"),
        ("1.3.1", False, True, "minor"),
        ("1.3.1", False, False, "patch"),
    ],
)
def test_what_a_change_of_the_interface_requires(old: str, breaking: bool, added: bool, part: str) -> None:
    assert required_part(Version(old), breaking, added) == part


@pytest.fixture
def interface(tmp_path: Path) -> Path:
    """A copy of GEGLU's sources that a test changes."""
    shutil.copytree(GEGLU.source.parent, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return tmp_path / "src"


def changes(interface: Path, file: str, before: str, after: str) -> Changes:
    path = interface / "npu_op_geglu" / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    return compare("npu_op_geglu", GEGLU.source.parent, interface, exports_only=True)


@pytest.mark.parametrize(
    ("file", "before", "after", "told"),
    [
        ("__init__.py", '"geglu_packed", ', "", "npu_op_geglu.geglu_packed: public object was removed"),
        ("op.py", "def geglu(\n    gate:", "def geglu(\n    x:", "gate"),
        ("op.py", "    inplace_backward: bool = False,\n", "", "inplace_backward"),
        ("op.py", "inplace_backward: bool = False", "inplace_backward: bool = True", "default was changed"),
        ("op.py", "def geglu(\n    gate: torch.Tensor,", "def geglu(\n    gate: torch.Tensor,\n    more: int,", "more"),
        ("module.py", "def forward(self, x", "def forward(self, y", "GEGLUMLP.forward"),
    ],
)
def test_a_broken_interface_is_noticed(interface: Path, file: str, before: str, after: str, told: str) -> None:
    found = changes(interface, file, before, after)
    assert any(told in change for change in found.breaking), found


def test_a_new_name_or_parameter_is_no_breach(interface: Path) -> None:
    found = changes(interface, "op.py", "inplace_backward: bool = False,", "inplace_backward: bool = False,\n    more: int = 0,")
    assert found == Changes([], ["npu_op_geglu.geglu(more)"])
    found = changes(interface, "__init__.py", '__all__ = ["GEGLUMLP", ', 'NEW = 1\n__all__ = ["NEW", "GEGLUMLP", ')
    assert found == Changes([], ["npu_op_geglu.NEW", "npu_op_geglu.geglu(more)"])


@pytest.mark.parametrize(
    ("file", "before", "after"), [("kernel.py", "def ", "def changed_"), ("__about__.py", "0.1.0", "0.2.0"), ("spec.py", "SPEC", "OTHER")]
)
def test_what_is_no_interface_may_change(interface: Path, file: str, before: str, after: str) -> None:
    assert changes(interface, file, before, after) == Changes([], [])


def test_every_module_of_the_runtime_is_interface(tmp_path: Path) -> None:
    runtime = named(ROOT, "runtime")
    shutil.copytree(runtime.source.parent, tmp_path / "src")
    (tmp_path / "src" / "npu_op_runtime" / "tiling.py").unlink()
    found = compare("npu_op_runtime", runtime.source.parent, tmp_path / "src", exports_only=False)
    assert any("tiling" in change for change in found.breaking)


def test_a_part_that_is_too_low_is_refused(root: Path) -> None:
    last = operator(root, "one", "0.1.0", __init__='__all__ = ["f"]\ndef f(x): ...\n')
    found = operator(root / "later", "one", "0.1.0", __init__='__all__ = ["f"]\ndef f(x, y): ...\n')
    with pytest.raises(Refused, match="after 0.1.0 this must be a minor release:\n    breaks: .*f.*y"):
        list(require_part(found, last, "patch", root / "later"))
    list(require_part(found, last, "minor", root / "later"))
    list(require_part(found, last, "major", root / "later"))


def test_bounds_know_released_and_in_tree_versions(root: Path) -> None:
    operator(root, "one", "0.4.0")
    for tag in ("npu-op-one-v0.1.0", "npu-op-one-v0.2.0"):
        git_in(root)("tag", tag)
    assert list(map(str, allowed(Requirement("npu-op-one>=0.1,<0.3"), root))) == ["0.1.0", "0.2.0"]
    assert list(map(str, allowed(Requirement("npu-op-one>=0.2"), root))) == ["0.2.0", "0.4.0"]
    with pytest.raises(Refused, match=r"npu-op-one<0.6,>=0.5 is satisfied by no version .*there are: 0.1.0, 0.2.0, 0.4.0"):
        allowed(Requirement("npu-op-one>=0.5,<0.6"), root)


def test_fragments_become_the_section_of_a_version(root: Path) -> None:
    found = operator(root, "one", "0.1.0")
    require_fragments(found)
    collect(root, found, Version("0.1.0"))
    write(found.folder, "changelog.d/2.fixed.md", "Something old.\n")
    collect(root, found, Version("0.1.1"))
    assert section(found, Version("0.1.0")) == "### Added\n\n- Something new. (#1)\n"
    assert section(found, Version("0.1.1")) == "### Fixed\n\n- Something old. (#2)\n"
    assert [path.name for path in (found.folder / "changelog.d").iterdir()] == [".gitkeep"]
    with pytest.raises(Refused, match="no section of version 0.1"):
        section(found, Version("0.1"))
    write(found.folder, "changelog.d/README.md")
    with pytest.raises(Refused, match="no fragments in changelog.d/"):
        require_fragments(found)


def test_a_fragment_of_an_unknown_kind_stops_the_release(root: Path) -> None:
    found = operator(root, "one", "0.1.0")
    write(found.folder, "changelog.d/3.nonsense.md", "What is this?\n")
    with pytest.raises(Refused, match="nonsense"):
        collect(root, found, Version("0.1.0"))


def test_the_same_input_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    found = operator(root, "one", "0.1.0", __init__="")
    copy = Distribution(tmp_path / "elsewhere")
    # copytree with copy: other times and another mode.
    shutil.copytree(found.folder, copy.folder, copy_function=shutil.copy)
    for file in copy.folder.rglob("*.py"):
        file.chmod(0o600)
    first, second = build(found, tmp_path / "first"), build(copy, tmp_path / "second")
    assert [path.suffix for path in first] == [".whl", ".gz"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_secrets_of_the_job_do_not_reach_the_build(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "secret")
    found = operator(root, "one", "0.1.0", __init__="")
    hook = "import os\nfrom hatchling.builders.hooks.plugin.interface import BuildHookInterface\nclass Hook(BuildHookInterface):\n"
    write(found.folder, "hatch_build.py", f"{hook}    def initialize(self, version, data):\n        assert 'A_SECRET' not in os.environ\n")
    with (found.folder / "pyproject.toml").open("a") as settings:
        settings.write("[tool.hatch.build.hooks.custom]\n")
    build(found, tmp_path / "dist")


def test_a_build_that_differs_the_second_time_is_refused(root: Path, tmp_path: Path) -> None:
    found = operator(root, "one", "0.1.0", __init__="")
    hook = "import os\nfrom hatchling.builders.hooks.plugin.interface import BuildHookInterface\nclass Hook(BuildHookInterface):\n"
    stamp = "        with open(self.root + '/src/npu_op_one/stamp.py', 'a') as stamp:\n            stamp.write('#')\n"
    write(found.folder, "hatch_build.py", f"{hook}    def initialize(self, version, data):\n{stamp}")
    with (found.folder / "pyproject.toml").open("a") as settings:
        settings.write("[tool.hatch.build.hooks.custom]\n")
    with pytest.raises(Refused, match="two builds of one tree differ in npu_op_one-0.1.0"):
        build_twice(found, tmp_path / "dist")


def test_a_build_that_fails_is_refused(root: Path, tmp_path: Path) -> None:
    found = operator(root, "one", "0.1.0", __init__="")
    (found.folder / "README.md").unlink()
    with pytest.raises(Refused, match="npu-op-one: the build failed\n(.*\n)*.*README"):
        build_twice(found, tmp_path / "dist")


def test_what_an_index_would_refuse_is_refused(root: Path, tmp_path: Path) -> None:
    found = operator(root, "one", "0.1.0", __init__="")
    settings = found.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace('readme = "README.md"\n', ""))
    with pytest.raises(Refused, match="npu-op-one: an index would refuse the archives\n(.*\n)*.*long_description"):
        build_twice(found, tmp_path / "dist")


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    write(tmp_path, "packages/a.whl", "a")
    write(tmp_path, "notes.md", "b")
    write_checksums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
    write(tmp_path, "packages/a.whl", "changed")
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=False, capture_output=True).returncode == 1


def wheel_of(found: Distribution, target: Path) -> Path:
    return next(path for path in build(found, target) if path.suffix == ".whl")


def test_a_clean_environment_holds_what_is_declared_and_no_more(root: Path, tmp_path: Path) -> None:
    found = operator(root, "one", "0.1.0", "packaging>=20", __init__="import packaging")
    environment = Environment(tmp_path / "clean", {"npu-op-one"})
    environment.install(wheel_of(found, tmp_path / "dist"))
    environment.require_consistent()
    environment.run("-I", "-c", "import npu_op_one", cwd=tmp_path, refusal="it does not import")
    # Both are in the environment that runs the tests.
    for undeclared in ("numpy", "npu_op_runtime"):
        with pytest.raises(Refused, match=f"No module named '{undeclared}'"):
            environment.run("-I", "-c", f"import {undeclared}", cwd=tmp_path, refusal="it does not import")


@pytest.mark.parametrize(
    ("readme", "told"),
    [
        ("no example\n", "README.md must have an example"),
        ("```python\nassert 1 == 2\n```\n", "an example of the README fails\n(.*\n)*AssertionError"),
        ("```python\nimport numpy\n```\n", "No module named 'numpy'"),
    ],
)
def test_a_readme_without_an_example_that_runs_is_refused(root: Path, tmp_path: Path, readme: str, told: str) -> None:
    found = operator(root, "one", "0.1.0", __init__="")
    write(found.folder, "README.md", readme)
    with pytest.raises(Refused, match=f"npu-op-one: (.*\n)*.*{told}"):
        try_alone(found, Wheelhouse(root, tmp_path / "house"), tmp_path / "clean")


def test_a_wheel_that_does_not_import_is_refused(root: Path, tmp_path: Path) -> None:
    found = operator(root, "one", "0.1.0", __init__="import npu_op_nothing")
    write(found.folder, "README.md", "```python\nimport npu_op_one\n```\n")
    with pytest.raises(Refused, match="npu-op-one: the wheel does not import(.*\n)*.*No module named 'npu_op_nothing'"):
        try_alone(found, Wheelhouse(root, tmp_path / "house"), tmp_path / "clean")


def test_nothing_is_recorded_unless_it_is_asked_for(root: Path) -> None:
    before = git_in(root)("log"), git_in(root)("status", "--porcelain"), git_in(root)("tag")
    with worktree(root) as tree:
        write(tree, "packages/one/CHANGELOG.md", "a section\n")
        told = record(root, tree, "npu-op-one", Version("0.1.0"), "notes", execute=False)
    assert told == "npu-op-one 0.1.0 could be released; nothing was changed: add --execute to commit and tag"
    assert (git_in(root)("log"), git_in(root)("status", "--porcelain"), git_in(root)("tag")) == before


@pytest.mark.parametrize("moved", [False, True])
def test_a_branch_that_moved_meanwhile_gets_no_tag(root: Path, monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    git = git_in(root)
    with worktree(root) as tree:
        if moved:
            write(root, "packages/one/README.md", "moved\n")
            commit(root)
        head = git("rev-parse", "HEAD")
        write(tree, "packages/one/CHANGELOG.md", "a section\n")
        if moved:
            with pytest.raises(Refused, match="npu-op-one 0.1.0 passed, but the branch moved meanwhile"):
                record(root, tree, "npu-op-one", Version("0.1.0"), "notes", execute=True)
        else:
            record(root, tree, "npu-op-one", Version("0.1.0"), "notes", execute=True)
    assert (git("rev-parse", "HEAD") == head, git("tag")) == ((True, "") if moved else (False, "npu-op-one-v0.1.0\n"))


def test_a_tag_of_another_version_is_not_published(root: Path) -> None:
    git_in(root)("tag", "npu-op-one-v0.2.0")
    with pytest.raises(Refused, match="npu-op-one-v0.2.0 holds npu-op-one 0.1.0"):
        list(publish(root, "npu-op-one-v0.2.0", []))


def test_a_missing_sibling_is_noticed(root: Path, tmp_path: Path) -> None:
    found = operator(root, "one", "0.1.0", "npu-op-two>=0.1", __init__="")
    environment = Environment(tmp_path / "clean", {"npu-op-one", "npu-op-two"})
    environment.install(wheel_of(found, tmp_path / "dist"))
    with pytest.raises(Refused, match="requires npu-op-two, which is not installed"):
        environment.require_consistent()


def test_the_triton_of_ascend_stands_for_the_one_that_torch_asks_for(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "clean", set())
    environment.borrow([Requirement("triton==3.6.0")])
    program = "import importlib.metadata as m, importlib.util as u; assert m.version('triton') == '3.6.0' and u.find_spec('triton')"
    environment.run("-I", "-c", program, cwd=tmp_path, refusal="it is not there")
    environment.require_consistent()


def test_what_cannot_be_borrowed_is_named(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "clean", set())
    with pytest.raises(Refused, match="not-there-at-all is needed, but is not in the environment"):
        environment.borrow([Requirement("not-there-at-all")])
    with pytest.raises(Refused, match="packaging<1 is needed, but the environment that runs the release has"):
        environment.borrow([Requirement("packaging<1")])


def test_pip_reads_the_index(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index of wheels"
    for version in ("0.1.0", "0.2.0"):
        index.add(folder, build(operator(root, "one", version, __init__=""), tmp_path / version))
    index.add(folder, build(operator(root, "two", "0.5.0", "npu-op-one<0.2", __init__=""), tmp_path / "two"))
    pip = [sys.executable, "-m", "pip", "--isolated", "download", "--quiet", "--index-url", folder.as_uri()]
    command = [*pip, "--dest", str(tmp_path / "got"), "npu-op-two"]
    subprocess.run(command, check=True, capture_output=True)
    assert sorted(path.name for path in (tmp_path / "got").iterdir()) == [
        "npu_op_one-0.1.0-py3-none-any.whl",
        "npu_op_two-0.5.0-py3-none-any.whl",
    ]
    # A page names the hash: pip takes no other bytes.
    (folder / "npu-op-one" / "npu_op_one-0.1.0-py3-none-any.whl").write_bytes(b"other")
    failed = subprocess.run([*command, "--no-cache-dir", "--dest", str(tmp_path / "again")], check=False, capture_output=True, text=True)
    assert "DO NOT MATCH THE HASHES" in failed.stderr


def test_an_unknown_distribution_is_named() -> None:
    with pytest.raises(Refused, match="no distribution is called 'nothing' .*there are: .*geglu"):
        named(ROOT, "nothing")
