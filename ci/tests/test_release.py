"""Releases of this repository's own distributions, in a copy of it: what is refused, and the whole way of two operators."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from releasing.environment import Environment
from repo import distributions, operators
from repositories import ENVIRONMENT, commit, copy_of_the_repository, git_in, write

# The way is under trial here, not the operators: one quick test of each.
ONE_TEST = ("--", "-n0", "-k", "wrong_arguments or test_soc")


def release(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "ci/release.py", *arguments]
    return subprocess.run(command, cwd=root, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def released(root: Path, *arguments: str) -> str:
    done = release(root, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(root: Path, *arguments: str) -> str:
    before = state(root)
    done = release(root, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert state(root) == before
    return done.stderr


def state(root: Path) -> list[str]:
    git = git_in(root)
    return [git("rev-parse", "HEAD"), git("status", "--porcelain"), git("tag"), git("worktree", "list")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The repository with two operators only."""
    root = copy_of_the_repository(tmp_path / "repository")
    for operator in operators(root):
        if operator.short not in ("geglu", "softmax"):
            shutil.rmtree(operator.folder)
    subprocess.run([sys.executable, "ci/catalogue.py"], cwd=root, check=True)
    commit(root)
    return root


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_what_a_release_refuses_before_it_builds(root: Path) -> None:
    geglu = root / "packages" / "geglu"

    write(root, "stray.txt")
    assert refused(root, "prepare", "geglu", "minor") == "refused: the tree is dirty; commit or remove this first:\n    ?? stray.txt\n"
    (root / "stray.txt").unlink()

    change(geglu / "pyproject.toml", "npu-op-runtime>=0.1,<0.2", "npu-op-runtime>=7.0,<7.1")
    commit(root)
    assert "npu-op-runtime<7.1,>=7.0 is satisfied by no version" in refused(root, "prepare", "geglu", "minor")
    change(geglu / "pyproject.toml", "npu-op-runtime>=7.0,<7.1", "npu-op-runtime>=0.1,<0.2")

    change(geglu / "src/npu_op_geglu/__about__.py", "0.1.0", "0.4.0")
    commit(root)
    assert "would be 0.1.0, which goes back behind the 0.4.0" in refused(root, "prepare", "geglu", "minor")
    change(geglu / "src/npu_op_geglu/__about__.py", "0.4.0", "0.1.0")
    commit(root)

    change(geglu / "LICENSE", "Apache License", "Another Licence")
    commit(root)
    assert "the rules of the repository are broken" in refused(root, "prepare", "geglu", "minor")
    change(geglu / "LICENSE", "Another Licence", "Apache License")

    # As if it had been released: what follows differs from that tag.
    git_in(root)("tag", "npu-op-geglu-v0.1.0")
    change(geglu / "src/npu_op_geglu/__init__.py", '"geglu_packed", ', "")
    commit(root)
    told = refused(root, "prepare", "geglu", "patch")
    assert "after 0.1.0 this must be a minor release:\n    breaks: npu_op_geglu.geglu_packed: public object was removed" in told

    shutil.rmtree(geglu / "changelog.d")
    commit(root)
    assert "npu-op-geglu: no fragments in changelog.d/" in refused(root, "prepare", "geglu", "minor")


def test_an_operator_that_fails_on_a_new_runtime_stops_it(root: Path) -> None:
    for tag in ("npu-op-runtime-v0.1.0", "npu-op-softmax-v0.1.0"):
        git_in(root)("tag", tag)
    # What no signature shows: softmax's tests know the message.
    change(root / "runtime/core/src/npu_op_runtime/checks.py", "must be a torch.Tensor", "should be a torch.Tensor")
    write(root, "runtime/core/changelog.d/1.changed.md", "Another message.\n")
    commit(root)
    told = refused(root, "prepare", "runtime", "patch", *ONE_TEST)
    assert "npu-op-softmax 0.1.0: tests fail" in told


def test_two_operators_are_released_and_installed(root: Path, tmp_path: Path) -> None:
    git = git_in(root)
    index = (root / "dist" / "index").as_uri()

    for name in ("runtime", "geglu"):
        told = released(root, "prepare", name, "minor", "--execute", *ONE_TEST)
        assert f"tagged npu-op-{name}-v0.1.0; publish it: git push --atomic origin HEAD npu-op-{name}-v0.1.0" in told
        assert git("log", "-1", "--format=%s", f"npu-op-{name}-v0.1.0") == f"npu-op-{name} 0.1.0\n"
    assert "examples and tests pass with npu-op-runtime 0.1.0" in told
    assert git("status", "--porcelain") == ""
    assert git("branch", "--show-current") == "main\n"
    assert "\n## 0.1.0 (" in (root / "packages/geglu/CHANGELOG.md").read_text()

    # The workflow of the tag makes the same bytes.
    folder = root / "dist" / "release" / "npu-op-geglu-v0.1.0"
    ours = {path.name: path.read_bytes() for path in (folder / "packages").iterdir()}
    assert sorted(ours) == ["npu_op_geglu-0.1.0-py3-none-any.whl", "npu_op_geglu-0.1.0.tar.gz"]
    released(root, "publish", "npu-op-geglu-v0.1.0", *ONE_TEST)
    assert {path.name: path.read_bytes() for path in (folder / "packages").iterdir()} == ours
    assert (folder / "notes.md").read_text().startswith("### ")
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    bill = json.loads((folder / "sbom.cdx.json").read_text())
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == ("npu-op-geglu", "0.1.0")
    assert {"torch", "npu-op-runtime"} <= {component["name"] for component in bill["components"]}
    assert "HEAD is not what npu-op-runtime-v0.1.0 names" in refused(root, "publish", "npu-op-runtime-v0.1.0")

    # A new runtime is tried with what was released for the last one, an operator with both ends of what it allows.
    write(root, "runtime/core/changelog.d/1.fixed.md", "Nothing much.\n")
    commit(root)
    told = released(root, "prepare", "runtime", "patch", "--execute", *ONE_TEST)
    assert "npu-op-geglu 0.1.0 works with it\n" in told
    told = released(root, "prepare", "softmax", "minor", "--execute", *ONE_TEST)
    assert "examples and tests pass with npu-op-runtime 0.1.0\nexamples and tests pass with npu-op-runtime 0.1.1\n" in told

    # A wave pins what was released last; npu-ops has an extra for each operator. Dry, it changes nothing.
    told = released(root, "wave", "2026.12", "--execute")
    assert "get along: npu-op-runtime 0.1.1, npu-op-geglu 0.1.0, npu-op-softmax 0.1.0" in told
    assert "wave 2026.12 does not come after 2026.12" in refused(root, "wave", "2026.12")

    # What a user does. torch is there already, as on every machine that needs an operator.
    user = Environment(tmp_path / "user", {found.name for found in distributions(root)})
    user.borrow([Requirement("torch")])
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(user.python), "install", "--index-url", index]
    subprocess.run([*pip, "npu-op-geglu"], check=True, capture_output=True)
    known_good = str(root / "umbrella/waves/2026.12.txt")
    subprocess.run([*pip, "--constraint", known_good, "npu-ops[all]"], check=True, capture_output=True)
    user.require_consistent()
    program = "import npu_op_geglu as g, npu_op_softmax as s, npu_op_runtime as r; print(g.__version__, s.__version__, r.__version__)"
    done = subprocess.run([user.python, "-I", "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "0.1.0 0.1.0 0.1.1\n"
