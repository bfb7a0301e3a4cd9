"""Each rule of the repository must notice the breach it is there for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from checks import catalogue, command, files, kernels, licenses, metadata, sources
from repo import ROOT
from repositories import commit, git_in

OPERATOR = "packages/rmsnorm"
SOURCE = f"{OPERATOR}/src/npu_op_rmsnorm"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository that a test may break."""
    shutil.copy(ROOT / "LICENSE", tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    for folder in (".ci", "runtime", "packages"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", ".*"))
    return tmp_path


def rewrite(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


@pytest.mark.parametrize("rule", [licenses, files, sources, metadata, kernels, catalogue, command])
def test_the_repository_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert list(rule(ROOT)) == []


def test_licence_copies_must_be_equal(tree: Path) -> None:
    append(tree / OPERATOR / "LICENSE", "\n")
    assert len(list(licenses(tree))) == 1


@pytest.mark.parametrize(
    "name",
    ["README.md", "CHANGELOG.md", "tests/test_rmsnorm.py", "src/npu_op_rmsnorm/spec.py", "src/npu_op_rmsnorm/py.typed"],
)
def test_an_operator_is_complete(tree: Path, name: str) -> None:
    (tree / OPERATOR / name).unlink()
    assert list(files(tree)) == [f"{tree / OPERATOR / name}: missing"]


@pytest.mark.parametrize("name", ["npu_op_softmax", "torch.py"])
def test_a_distribution_holds_its_module_alone(tree: Path, name: str) -> None:
    git_in(tree)("init")
    (tree / OPERATOR / "src" / name).mkdir()
    assert list(sources(tree)) == [f"{tree / OPERATOR / 'src' / name}: beside npu_op_rmsnorm, which alone may lie there"]


@pytest.mark.parametrize("name", ["tests/linked.py", "tests/ünï code\n.py"])
def test_a_distribution_links_to_nothing(tree: Path, name: str) -> None:
    (tree / OPERATOR / name).symlink_to("../../softmax/README.md")
    git_in(tree)("init")
    commit(tree)
    (problem,) = sources(tree)
    assert problem.startswith(f"{tree / OPERATOR / name}: a symbolic link;")


def test_a_distribution_holds_no_submodule(tree: Path) -> None:
    git = git_in(tree)
    git("init")
    commit(tree)
    git("update-index", "--add", "--cacheinfo", f"160000,{git('rev-parse', 'HEAD').strip()},{OPERATOR}/vendored")
    (problem,) = sources(tree)
    assert problem.startswith(f"{tree / OPERATOR}/vendored: a submodule;")


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("npu_op_rmsnorm.spec:SPEC", "npu_op_rmsnorm.spec:OTHER", "entry-points must be"),
        ("npu-op-runtime>=0.1,<0.2", "npu-op-runtime>=0.1", "must require npu-op-runtime>=X,<Y"),
        ("npu-op-runtime>=0.1,<0.2", "npu-op-runtime>=0.2,<0.3", "outside of the range"),
        ('"torch>=2.6"', '"torch>=2.6", "einops"', "dependencies besides torch"),
        ('license-files = ["LICENSE"]', 'license-files = ["../../LICENSE"]', "license-files must be"),
        ('cuda = ["npu-op-runtime[cuda]"]', 'cuda = ["triton"]', "optional-dependencies must be"),
    ],
)
def test_metadata_is_derived_from_the_folder(tree: Path, before: str, after: str, complaint: str) -> None:
    rewrite(tree / OPERATOR / "pyproject.toml", before, after)
    (problem,) = metadata(tree)
    assert complaint in problem


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("tl.load(x + i, mask=i < n)", "without other="),
        ("tl.load(x + i, i < n)", "without other="),
        ("tl.exp2(x)", "use exp"),
        ("from triton.language import exp2\n    exp2(x)", "use exp"),
        ("from triton.language.math import log2 as base_two\n    base_two(x)", "use log"),
        ("from triton.language import load\n    load(x + i, i < n)", "without other="),
        ("x.log2()", "use log"),
        ("i % n", "remainder"),
        ("tl.atomic_add(x, i)", "one partial per core"),
        ("if CUDA:\n        x\n    else:\n        tl.exp2(x)", "use exp"),
        ("if SIZE:\n        tl.exp2(x)", "use exp"),
    ],
)
def test_kernels_avoid_what_runs_on_the_scalar_unit(tree: Path, statement: str, complaint: str) -> None:
    allowed = "    SIZE % 2\n    tl.load(x + i, mask=i < n, other=0.0)\n    tl.load(x + i, i < n, 0.0)\n    if CUDA:\n        tl.exp2(x)\n"
    kernel = f"\n\n@triton.jit\ndef broken(x, i, n, SIZE: tl.constexpr, CUDA: tl.constexpr):\n{allowed}"
    append(tree / SOURCE / "kernel.py", f"{kernel}    {statement}\n")
    (problem,) = kernels(tree)
    assert "broken" in problem
    assert complaint in problem


def test_the_readme_lists_every_operator(tree: Path) -> None:
    assert list(catalogue(tree)) == []
    shutil.rmtree(tree / OPERATOR)
    (problem,) = catalogue(tree)
    assert "python ci/catalogue.py" in problem


def test_the_readme_gives_the_command_of_ci(tree: Path) -> None:
    rewrite(tree / ".ci/run", "python3 -m nox", "python3 -m nox -s tests")
    assert [problem.partition(": ")[2][:40] for problem in command(tree)] == ["does not give the command of .ci/run: py"]
