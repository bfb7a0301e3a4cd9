"""What a change affects, on histories made for each rule with git itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from affected import MATRIX_LIMIT, Affected, AffectedError, affected, changed, detect, examples, matrix, merge_base, packages
from repo import ROOT, distributions, operators
from repositories import commit, copy_of_the_repository, git_in, write

EVERYTHING = ["alone", "lab", "runtime", "user", "users-user", "used"]


def package(root: Path, folder: str, name: str, *needs: str, extra: str = "") -> None:
    write(root, f"{folder}/pyproject.toml", f'[project]\nname = "{name}"\ndependencies = [{", ".join(map(repr, needs))}]\n{extra}')
    write(root, f"{folder}/src/code.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four operators on a runtime, committed on main; work goes on on a branch."""
    root = tmp_path / "repository"
    package(root, "runtime/core", "npu-op-runtime", "torch>=2.6")
    package(root, "runtime/lab", "npu-op-lab", "npu-op-runtime>=0.1,<0.2")
    package(root, "packages/used", "npu-op-used", "npu-op-runtime>=0.1,<0.2")
    package(root, "packages/user", "npu-op-user", "npu-op-runtime>=0.1,<0.2", "npu_op_used[fast]>=0.1")
    package(
        root,
        "packages/users-user",
        "npu-op-users-user",
        extra='[dependency-groups]\ntest = ["NPU.op-user", {include-group = "x"}]\nx = []\n',
    )
    package(root, "packages/alone", "npu-op-alone", "npu-op-runtime>=0.1,<0.2")
    for name in ("ci/tool.py", "ci/constraints.txt", "docs/index.md", "noxfile.py", "pyproject.toml", "LICENSE", ".github/workflows/x.yml"):
        write(root, name)
    git = git_in(root)
    git("init", "--initial-branch", "main")
    commit(root)
    git("checkout", "-b", "work")
    return root


def names(root: Path, base: str = "main") -> list[str]:
    return sorted(detect(root, base).packages)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("packages/alone/src/code.py", ["alone"]),
        ("packages/alone/changelog.d/1.fixed.md", ["alone"]),
        ("packages/users-user/tests/test_it.py", ["users-user"]),
        ("packages/user/src/code.py", ["user", "users-user"]),
        ("packages/used/src/code.py", ["used", "user", "users-user"]),
    ],
)
def test_a_package_affects_itself_and_all_that_need_it(root: Path, path: str, expected: list[str]) -> None:
    write(root, path, "changed\n")
    commit(root)
    assert names(root) == sorted(expected)
    assert not detect(root, "main").docs


@pytest.mark.parametrize(
    "path",
    [
        "runtime/core/src/code.py",
        "runtime/lab/src/code.py",
        "ci/tool.py",
        "ci/constraints.txt",
        ".ci/run",
        ".github/workflows/x.yml",
        "noxfile.py",
        "pyproject.toml",
        "LICENSE",
        ".gitignore",
    ],
)
def test_what_all_stand_on_affects_all(root: Path, path: str) -> None:
    write(root, path, "changed\n")
    commit(root)
    found = detect(root, "main")
    assert sorted(found.packages) == sorted(EVERYTHING)
    assert found.everything == [f"{path} changed"]
    assert found.docs


@pytest.mark.parametrize("path", ["docs/index.md", "docs/deep/in/it.png", "mkdocs.yml", "README.md", "CONTRIBUTING.md"])
def test_pages_affect_the_site_alone(root: Path, path: str) -> None:
    write(root, path, "changed\n")
    commit(root)
    assert detect(root, "main") == Affected(docs=[f"{path} changed"])


@pytest.mark.parametrize("path", ["umbrella/README.md", "umbrella/waves/1.txt"])
def test_some_files_are_for_lint_alone(root: Path, path: str) -> None:
    write(root, path, "changed\n")
    commit(root)
    assert detect(root, "main") == Affected()


@pytest.mark.parametrize(
    "path", ["unknown.txt", "tools/x.py", "packages/stray.md", "packages/nothing/here.py", "docs.md", "noxfile.py.orig"]
)
def test_a_path_that_nobody_claims_is_an_error_that_names_it(root: Path, path: str) -> None:
    write(root, path)
    write(root, "packages/alone/src/code.py", "changed\n")
    commit(root)
    with pytest.raises(AffectedError, match=f"{path}.*add one to ci/affected.py"):
        detect(root, "main")


def test_no_change_affects_nothing(root: Path) -> None:
    assert detect(root, "main") == Affected()


def test_a_rename_affects_both_ends(root: Path) -> None:
    git_in(root)("mv", "packages/alone/src/code.py", "packages/users-user/src/moved.py")
    commit(root)
    assert names(root) == ["alone", "users-user"]


def test_a_rename_of_a_whole_package_affects_the_new_one_and_what_needed_the_old(root: Path) -> None:
    git_in(root)("mv", "packages/user", "packages/renamed")
    write(root, "packages/renamed/pyproject.toml", '[project]\nname = "npu-op-renamed"\ndependencies = []\n')
    commit(root)
    assert names(root) == ["renamed", "users-user"]


def test_a_deleted_file_affects_its_package(root: Path) -> None:
    (root / "packages/alone/src/code.py").unlink()
    commit(root)
    assert names(root) == ["alone"]


def test_a_deleted_package_affects_what_needed_it(root: Path) -> None:
    shutil.rmtree(root / "packages/used")
    # The need is dropped in the same change: only the base knows of it.
    package(root, "packages/user", "npu-op-user")
    commit(root)
    assert names(root) == ["user", "users-user"]


def test_a_new_package_affects_itself(root: Path) -> None:
    package(root, "packages/new", "npu-op-new", "npu-op-alone")
    commit(root)
    assert names(root) == ["new"]


def test_a_need_that_is_new_counts(root: Path) -> None:
    package(root, "packages/alone", "npu-op-alone", "npu-op-users-user")
    write(root, "packages/used/src/code.py", "changed\n")
    commit(root)
    assert names(root) == ["alone", "used", "user", "users-user"]


def test_packages_that_need_each_other_end(root: Path) -> None:
    package(root, "packages/used", "npu-op-used", "npu-op-users-user")
    commit(root)
    assert names(root) == ["used", "user", "users-user"]


def test_what_is_not_committed_counts(root: Path) -> None:
    write(root, "packages/alone/src/code.py", "changed\n")
    write(root, "packages/users-user/src/untracked.py")
    assert names(root) == ["alone", "users-user"]


def test_what_git_ignores_does_not_count(root: Path) -> None:
    write(root, ".git/info/exclude", "*.log\n")
    write(root, "unknown.log")
    assert names(root) == []


def test_changes_on_the_base_since_then_do_not_count(root: Path) -> None:
    git = git_in(root)
    write(root, "packages/alone/src/code.py", "changed\n")
    commit(root)
    git("checkout", "main")
    write(root, "runtime/core/src/code.py", "changed\n")
    commit(root)
    git("checkout", "work")
    assert names(root) == ["alone"]


def test_a_merge_of_the_base_is_no_change_of_ours(root: Path) -> None:
    git = git_in(root)
    write(root, "packages/alone/src/code.py", "changed\n")
    commit(root)
    git("checkout", "main")
    write(root, "runtime/core/src/code.py", "changed\n")
    commit(root)
    git("checkout", "work")
    git("merge", "--no-edit", "main")
    assert names(root) == ["alone"]


def test_a_merge_of_another_branch_brings_its_changes(root: Path) -> None:
    git = git_in(root)
    git("checkout", "-b", "other", "main")
    write(root, "packages/users-user/src/code.py", "changed\n")
    commit(root)
    git("checkout", "work")
    write(root, "packages/alone/src/code.py", "changed\n")
    commit(root)
    git("merge", "--no-edit", "other")
    assert names(root) == ["alone", "users-user"]


def test_a_change_taken_back_affects_nothing(root: Path) -> None:
    write(root, "packages/alone/src/code.py", "changed\n")
    commit(root)
    git_in(root)("revert", "--no-edit", "HEAD")
    assert names(root) == []


def shallow_clone(root: Path, target: Path) -> Path:
    git_in(root)("clone", "--quiet", "--depth", "1", "--no-single-branch", root.as_uri(), str(target))
    return target


def test_a_shallow_clone_without_the_base_says_what_to_do(root: Path, tmp_path: Path) -> None:
    for text in ("one\n", "two\n"):
        write(root, "packages/alone/src/code.py", text)
        commit(root)
    first = git_in(root)("rev-parse", "HEAD~1").strip()
    with pytest.raises(AffectedError, match="is no commit of this clone.*shallow.*git fetch --unshallow.*fetch-depth: 0"):
        detect(shallow_clone(root, tmp_path / "shallow"), first)


def test_a_shallow_clone_without_a_common_commit_says_what_to_do(root: Path, tmp_path: Path) -> None:
    git = git_in(root)
    for branch in ("main", "work"):
        git("checkout", branch)
        write(root, "packages/alone/src/code.py", f"{branch}\n")
        commit(root)
    clone = shallow_clone(root, tmp_path / "shallow")
    with pytest.raises(AffectedError, match="no common commit.*git fetch --unshallow"):
        detect(clone, "origin/main")
    git_in(clone)("fetch", "--quiet", "--unshallow")
    assert names(clone, "origin/main") == ["alone"]


def test_an_unknown_base_is_named(root: Path) -> None:
    with pytest.raises(AffectedError, match="base 'nowhere' is no commit of this clone; fetch it first"):
        merge_base(root, "nowhere")


def test_a_base_without_common_history_is_named(root: Path) -> None:
    git = git_in(root)
    git("checkout", "--orphan", "island")
    git("commit", "--message", "an island")
    git("checkout", "work")
    with pytest.raises(AffectedError, match="HEAD and base 'island' have no common commit in this clone$"):
        detect(root, "island")


@pytest.mark.parametrize(
    "name", ["two words.py", "new\nline.py", "tab\tand\\slash.py", "ünïcode-文件.py", '"quoted".py', "-dash.py", "#hash.py"]
)
def test_odd_names_are_read_as_they_are(root: Path, name: str) -> None:
    write(root, f"packages/alone/src/{name}")
    commit(root)
    assert detect(root, "main").packages == {"alone": [f"packages/alone/src/{name} changed"]}


def test_a_name_that_is_no_text_is_read_and_printed(root: Path) -> None:
    (root / "packages/alone" / os.fsdecode(b"\xff.py")).write_text("text\n")
    commit(root)
    assert names(root) == ["alone"]
    assert r"packages/alone/\udcff.py changed" in run(root, "--why").stdout
    assert json.loads(run(root, "--json").stdout)["packages"] == ["alone"]


def test_settings_of_the_user_change_nothing(root: Path) -> None:
    git = git_in(root)
    for setting in (("diff.renames", "copies"), ("diff.relative", "true"), ("core.quotePath", "true"), ("diff.noprefix", "true")):
        git("config", *setting)
    git("mv", "packages/alone/src/code.py", "packages/users-user/src/moved.py")
    commit(root)
    assert changed(root, merge_base(root, "main")) == ["packages/alone/src/code.py", "packages/users-user/src/moved.py"]


def test_a_repository_within_a_package_counts_whatever_the_settings(root: Path) -> None:
    git = git_in(root)
    write(root, "packages/alone/within/code.py")
    git_in(root / "packages/alone/within")("init")
    commit(root / "packages/alone/within")
    commit(root)
    git("branch", "--force", "main")
    git("config", "diff.ignoreSubmodules", "all")
    assert names(root) == []
    write(root, "packages/alone/within/code.py", "changed\n")
    commit(root / "packages/alone/within")
    assert names(root) == ["alone"]


def test_thousands_of_paths_are_all_read(root: Path) -> None:
    for i in range(3000):
        write(root, f"packages/alone/src/{i}.py")
    write(root, "packages/users-user/src/z.py")
    commit(root)
    found = detect(root, "main")
    assert len(found.packages["alone"]) == 3000
    assert "users-user" in found.packages


def test_a_pyproject_that_cannot_be_read_is_named(root: Path) -> None:
    write(root, "packages/alone/pyproject.toml", "[project\n")
    with pytest.raises(AffectedError, match="packages/alone/pyproject.toml: no \\[project\\] with a name"):
        detect(root, "main")


@pytest.mark.parametrize("text", [b'[project]\nname = "npu-op-alone" # \xff\n', b"project = 3\n"])
def test_a_pyproject_of_another_kind_is_named(root: Path, text: bytes) -> None:
    (root / "packages/alone/pyproject.toml").write_bytes(text)
    with pytest.raises(AffectedError, match="packages/alone/pyproject.toml: "):
        detect(root, "main")


def test_a_page_that_is_no_text_is_named(root: Path) -> None:
    (root / "docs/page.md").write_bytes(b"\xff")
    with pytest.raises(AffectedError, match="docs/page.md: cannot be read as text"):
        detect(root, "main")


def test_what_mends_a_base_that_cannot_be_read_affects_all(root: Path) -> None:
    mended = (root / "packages/alone/pyproject.toml").read_text()
    write(root, "packages/alone/pyproject.toml", "[project\n")
    commit(root)
    git_in(root)("branch", "--force", "main")
    write(root, "packages/alone/pyproject.toml", mended)
    commit(root)
    found = detect(root, "main")
    assert sorted(found.packages) == sorted(EVERYTHING)
    assert found.everything[0].startswith("in the base, packages/alone/pyproject.toml: ")


def test_reasons_tell_the_way(root: Path) -> None:
    write(root, "packages/used/src/code.py", "changed\n")
    assert detect(root, "main").packages == {
        "used": ["packages/used/src/code.py changed"],
        "user": ["needs npu-op-used, which is affected"],
        "users-user": ["needs npu-op-user, which is affected"],
    }


@pytest.fixture
def shown(root: Path) -> Path:
    """The history with a program and a page that import operators, and a page that imports none."""
    write(root, "docs/examples/program.py", "import torch\nfrom npu_op_users_user import f\nfrom npu_op_alone.op import g\n")
    write(root, "docs/guide.md", "text\n```python\nimport npu_op_user as u\n```\n")
    write(root, "README.md", "```python\nimport torch\n```\n`from npu_op_alone import g`\n")
    commit(root)
    git_in(root)("branch", "--force", "main")
    return root


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("packages/alone/src/code.py", {"docs/examples/program.py": ["imports npu-op-alone, which is affected"]}),
        ("packages/users-user/src/code.py", {"docs/examples/program.py": ["imports npu-op-users-user, which is affected"]}),
        # used -> user -> users-user
        (
            "packages/used/src/code.py",
            {
                "docs/examples/program.py": ["imports npu-op-users-user, which is affected"],
                "docs/guide.md": ["imports npu-op-user, which is affected"],
            },
        ),
        ("docs/index.md", {}),
        ("README.md", {}),
        ("umbrella/README.md", {}),
    ],
)
def test_an_example_is_affected_by_what_it_imports(shown: Path, path: str, expected: dict[str, list[str]]) -> None:
    write(shown, path, "changed\n")
    commit(shown)
    assert detect(shown, "main").examples == expected


@pytest.mark.parametrize("line", ["if True:\n    from npu_op_alone import f\n", "import torch, npu_op_alone.op as op\n"])
def test_an_import_counts_wherever_it_stands(shown: Path, line: str) -> None:
    write(shown, "docs/other.md", f"1. text\n```python\n{line}```\n")
    commit(shown)
    git_in(shown)("branch", "--force", "main")
    write(shown, "packages/alone/src/code.py", "changed\n")
    assert detect(shown, "main").examples["docs/other.md"] == ["imports npu-op-alone, which is affected"]


@pytest.mark.parametrize("path", ["docs/examples/program.py", "docs/guide.md"])
def test_an_example_that_changes_is_affected(shown: Path, path: str) -> None:
    write(shown, path, "from npu_op_alone import h\n")
    commit(shown)
    assert detect(shown, "main") == Affected(examples={path: [f"{path} changed"]}, docs=[f"{path} changed"])


def test_an_example_that_is_gone_is_not_run(shown: Path) -> None:
    (shown / "docs/guide.md").unlink()
    write(shown, "packages/user/src/code.py", "changed\n")
    commit(shown)
    assert set(detect(shown, "main").examples) == {"docs/examples/program.py"}


def test_an_example_of_a_package_that_is_gone_is_run(shown: Path) -> None:
    shutil.rmtree(shown / "packages/alone")
    commit(shown)
    assert detect(shown, "main").examples == {"docs/examples/program.py": ["imports npu-op-alone, which is affected"]}


def test_what_all_stand_on_affects_every_example(shown: Path) -> None:
    write(shown, "runtime/core/src/code.py", "changed\n")
    assert set(detect(shown, "main").examples) == {"docs/examples/program.py", "docs/guide.md"}


def test_a_matrix_has_a_job_for_each_package() -> None:
    assert matrix(Affected({"b": [], "a": []})) == {"include": [{"package": "a"}, {"package": "b"}]}
    assert matrix(Affected()) == {"include": []}


def test_a_matrix_is_never_cut_off() -> None:
    at_limit = Affected({str(i): [] for i in range(MATRIX_LIMIT)})
    assert len(matrix(at_limit)["include"]) == MATRIX_LIMIT
    at_limit.add("one more", "")
    with pytest.raises(AffectedError, match="split the workflow"):
        matrix(at_limit)


def run(root: Path, *args: str, against: Sequence[str] = ("--base", "main")) -> subprocess.CompletedProcess[str]:
    """The script as CI calls it, copied into the repository under test, with the standard library alone."""
    scripts = ["ci/affected.py", "ci/history.py"]
    for script in scripts:
        write(root, script, (ROOT / script).read_text())
    write(root, ".git/info/exclude", "\n".join([*scripts, "__pycache__/"]))
    command = [sys.executable, "-E", "-S", "ci/affected.py", *against, *args]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_command_line_gives_names_reasons_json_and_matrix(root: Path) -> None:
    write(root, "packages/user/src/code.py", "changed\n")
    write(root, "docs/index.md", "changed\n")
    assert run(root).stdout == "user\nusers-user\ndocs\n"
    reasons = {
        "user": "packages/user/src/code.py changed",
        "users-user": "needs npu-op-user, which is affected",
        "docs": "docs/index.md changed",
    }
    assert run(root, "--why").stdout == "".join(f"{name}:\n    {reason}\n" for name, reason in reasons.items())
    answer = json.loads(run(root, "--json").stdout)
    expected = {"packages": ["user", "users-user"], "examples": [], "docs": True, "all": False}
    assert answer == {**expected, "why": detect(root, "main").explained()}
    assert json.loads(run(root, "--matrix").stdout) == {"include": [{"package": "user"}, {"package": "users-user"}]}


def test_the_command_line_gives_everything_when_asked(root: Path) -> None:
    answer = json.loads(run(root, "--json", against=("--all",)).stdout)
    assert sorted(answer["packages"]) == sorted(EVERYTHING)
    assert answer["all"] and answer["docs"]
    assert run(root, "--why", against=("--all",)).stdout.startswith("everything:\n    it was asked for\n")


def test_the_command_line_fails_with_a_message(root: Path) -> None:
    write(root, "unknown.txt")
    failed = run(root, "--json")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("affected: no rule says what these paths affect: 'unknown.txt'")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_repository(tmp_path_factory.mktemp("clone"))


@pytest.fixture
def on_branch(clone: Path) -> Path:
    git_in(clone)("checkout", "--force", "-B", "work", "main")
    return clone


def committed(root: Path, paths: Sequence[str]) -> list[str]:
    for path in paths:
        write(root, path, "# changed\n")
    commit(root)
    return names(root)


def test_a_commit_to_geglu_affects_geglu_alone(on_branch: Path) -> None:
    assert committed(on_branch, ["packages/geglu/src/npu_op_geglu/kernel.py"]) == ["geglu"]


def test_the_session_asks_the_script(on_branch: Path) -> None:
    committed(on_branch, ["packages/geglu/src/npu_op_geglu/kernel.py"])
    command = [sys.executable, "-m", "nox", "--no-venv", "-s", "affected", "--", "--base", "main", "--why"]
    done = subprocess.run(command, cwd=on_branch, capture_output=True, text=True, check=True)
    assert done.stdout == "geglu:\n    packages/geglu/src/npu_op_geglu/kernel.py changed\n"


class Session:
    """Stands for nox's: asks ci/affected.py of a clone, and keeps what else was to be run."""

    posargs = ("--base", "main")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[tuple[str, ...]] = []

    def run(self, *command: str, **_: object) -> str:
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout

    def notify(self, name: str, posargs: Sequence[str]) -> None:
        self.commands.append((name, *posargs))

    def log(self, *_: object) -> None:
        pass


@pytest.fixture
def ran(noxfile: ModuleType, on_branch: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Session]:
    """Commits a change of a path, and gives the session `affected` that came to its end on it."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(noxfile, "HAS_CUDA", False)
    monkeypatch.setattr(noxfile, "run", lambda session, _, *command, **__: session.commands.append(command))

    def ran(path: str) -> Session:
        committed(on_branch, [path])
        session = Session(on_branch)
        noxfile.affected(session)
        assert ("ruff", "check", ".") in session.commands
        assert ("python", "ci/workflows.py") in session.commands
        return session

    return ran


def paths_of_pytest(session: Session) -> list[list[str]]:
    """The paths of each run of pytest."""
    runs = [command[3:] for command in session.commands if command[:3] == ("python", "-m", "pytest")]
    return [[argument.removeprefix(f"{ROOT}/") for argument in arguments if not argument.startswith("-")] for arguments in runs]


def compiled(session: Session) -> list[str]:
    return [command[2] for command in session.commands if command[:2] == ("npu-lab", "compile")]


def test_a_change_of_geglu_runs_geglu_alone(ran: Callable[[str], Session]) -> None:
    session = ran("packages/geglu/src/npu_op_geglu/kernel.py")
    # Eager and in the interpreter.
    assert paths_of_pytest(session) == [["packages/geglu"], ["packages/geglu"]]
    assert compiled(session) == ["geglu"]
    assert ("docs",) not in session.commands


def test_a_change_of_the_runtime_runs_all(ran: Callable[[str], Session]) -> None:
    session = ran("runtime/core/src/npu_op_runtime/soc.py")
    every = [found.folder.relative_to(ROOT).as_posix() for found in distributions()]
    assert [sorted(paths) for paths in paths_of_pytest(session)] == [
        sorted(["ci/tests", *every]),
        sorted(path for path in every if path.startswith("packages/")),
    ]
    assert compiled(session) == [operator.short for operator in operators()]
    assert ("docs",) in session.commands


def test_a_change_of_an_operator_runs_the_example_that_imports_it(ran: Callable[[str], Session]) -> None:
    session = ran("packages/split-qk-norm/src/npu_op_split_qk_norm/kernel.py")
    assert paths_of_pytest(session) == [["ci/tests/test_glm5_attention.py", "packages/split-qk-norm"], ["packages/split-qk-norm"]]


def test_a_change_of_a_page_runs_its_code_and_makes_the_site(ran: Callable[[str], Session]) -> None:
    session = ran("docs/oracle.md")
    assert (paths_of_pytest(session), compiled(session)) == ([], [])
    assert ("docs",) in session.commands


def test_what_a_package_tests_is_what_it_needs() -> None:
    """A test that imports another operator than its package declares would not be run when that one changes."""
    known = packages(ROOT)
    for folder, package in known.items():
        texts = "".join(file.read_text() for file in (ROOT / folder / "tests").rglob("*.py"))
        modules = re.findall(r"^ *(?:from|import) (npu_op_\w+)", texts, re.MULTILINE)
        names = {module.replace("_", "-") for module in modules} & {other.name for other in known.values()}
        assert names <= {package.name, "npu-op-lab", "npu-op-runtime", *package.needs}, folder


@pytest.mark.parametrize("path", ["runtime/core/src/npu_op_runtime/soc.py", "runtime/lab/src/npu_op_lab/oracle.py", "noxfile.py"])
def test_a_commit_to_what_all_stand_on_affects_all(on_branch: Path, path: str) -> None:
    assert committed(on_branch, [path]) == sorted(found.short for found in distributions(on_branch))


def test_every_path_of_the_repository_is_claimed(on_branch: Path) -> None:
    everything = packages(on_branch)
    affected(git_in(on_branch)("ls-files", "-z").split("\0")[:-1], everything, everything, {})


@pytest.mark.parametrize("operator", ["layernorm", "rope-qk-mqa", "rotary-cache", "split-qk-norm"])
def test_the_operators_of_the_glm5_example_bring_it_in(on_branch: Path, operator: str) -> None:
    assert committed(on_branch, [f"packages/{operator}/src/npu_op_{operator.replace('-', '_')}/kernel.py"]) == [operator]
    assert "docs/examples/glm5_attention.py" in detect(on_branch, "main").examples


def test_every_program_has_its_tests() -> None:
    """Pages have theirs in test_readme, which asks for the examples as this does."""
    programs = [Path(path).stem for path in examples(ROOT) if path.endswith(".py")]
    assert "glm5_attention" in programs
    assert all((ROOT / "ci" / "tests" / f"test_{program}.py").exists() for program in programs)


def test_the_graph_is_that_of_the_metadata() -> None:
    assert {package.short for package in packages(ROOT).values()} == {found.short for found in distributions()}
    for operator in operators():
        package = packages(ROOT)[operator.folder.relative_to(ROOT).as_posix()]
        assert set(operator.requirements) <= package.needs
