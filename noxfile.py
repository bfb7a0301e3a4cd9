"""Sessions of the repository: `nox -l` lists them, CONTRIBUTING.md explains them.

The sessions of the operators are registered for what lies under packages/, and share one prepared environment per
stack: `triton-ascend` (every machine) and, on a CUDA machine, `triton`. The two overwrite each other, so they never
share one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "ci"))

from affected import examples  # noqa: E402
from repo import Distribution, distributions, operators  # noqa: E402

Stack = Literal["ascend", "cuda"]
SessionFunction = Callable[[nox.Session], None]

CONSTRAINTS = "ci/constraints.txt"
# liger-kernel requires `triton`, which would overwrite triton-ascend.
PEERS = ("liger-kernel",)
HAS_CUDA = shutil.which("nvidia-smi") is not None
HAS_NPU = any(Path("/dev").glob("davinci[0-9]*"))
# One torch thread per worker: the workers already fill the cores.
WORKERS = ("--numprocesses=auto", "--maxprocesses=8")
# Where kernels run on this machine's own device, or in the interpreter where it has none.
DEVICE_STACK: Stack = "cuda" if HAS_CUDA else "ascend"

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = True
nox.options.default_venv_backend = "virtualenv"

# The commands of each prepared environment, filled by its session.
_bin: dict[Stack, Path] = {}


def shared(name: str, doc: str, *stacks: Stack, tags: Sequence[str] = ()) -> Callable[[SessionFunction], SessionFunction]:
    """Registers a session that runs in the prepared environments of `stacks`."""

    def register(function: SessionFunction) -> SessionFunction:
        function.__doc__ = doc
        requires = [f"prepare-{stack}" for stack in dict.fromkeys(stacks)]
        nox.session(name=name, venv_backend="none", requires=requires, tags=tags)(function)
        return function

    return register


def run(session: nox.Session, stack: Stack, command: str, *args: str, **env: str) -> None:
    """Runs a command of a prepared environment."""
    path = f"{_bin[stack]}{os.pathsep}{os.environ['PATH']}"
    session.run(str(_bin[stack] / command), *args, env={"PATH": path, **env}, external=True)


def put_triton_ascend_back(session: nox.Session) -> None:
    """Where a CUDA build of torch brought `triton` along: takes it out, and puts back the files that it overwrote."""
    if list(Path(session.virtualenv.location).glob("lib/python*/site-packages/triton-[0-9]*.dist-info")):
        session.run("python", "-m", "pip", "uninstall", "--yes", "triton")
        session.install("-c", CONSTRAINTS, "--no-deps", "--force-reinstall", "triton-ascend")


def prepare(session: nox.Session, stack: Stack) -> None:
    """Installs the stack, the packages (editable) and the tools, when a pin or a pyproject.toml changed."""
    if not session.virtualenv.is_sandboxed:
        _bin[stack] = Path(sys.executable).parent
        session.log(f"--no-venv: {sys.executable} is used as it is")
        return
    if HAS_NPU and stack == DEVICE_STACK:
        session.error("this machine has an NPU: run `nox --no-venv` in its own Python, which has torch_npu and CANN (see CONTRIBUTING.md)")
    _bin[stack] = Path(session.bin)

    pyprojects = [distribution.folder / "pyproject.toml" for distribution in distributions()]
    files = [ROOT / "noxfile.py", ROOT / "pyproject.toml", ROOT / CONSTRAINTS, *pyprojects]
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    stamp = Path(session.virtualenv.location) / "prepared"
    if stamp.exists() and stamp.read_text() == key:
        session.log("nothing changed since it was prepared")
        return

    extras = {"npu-op-runtime": "[cuda]", "npu-op-lab": "[test]"} if stack == "cuda" else {"npu-op-lab": "[compiler,test]"}
    editables = [arg for found in distributions() for arg in ("-e", f"{found.folder}{extras.get(found.name, '')}")]
    session.install("-c", CONSTRAINTS, *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "dev"), *editables)
    session.install("-c", CONSTRAINTS, "--no-deps", *PEERS)
    if stack == "ascend":
        put_triton_ascend_back(session)
    # run_install, so that `nox --no-install` leaves no stamp behind for an installation that it skipped.
    session.run_install("python", "-c", "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])", str(stamp), key)


@nox.session(name="prepare-ascend", python="3.11", reuse_venv=True)
def prepare_ascend(session: nox.Session) -> None:
    """Make or refresh the shared environment: torch, triton-ascend, the packages, the tools."""
    prepare(session, "ascend")


if HAS_CUDA:

    @nox.session(name="prepare-cuda", python="3.11", reuse_venv=True)
    def prepare_cuda(session: nox.Session) -> None:
        """Make or refresh the shared environment of the CUDA machine: torch, triton, the packages, the tools."""
        prepare(session, "cuda")


def run_pytest(session: nox.Session, stack: Stack, *arguments: str, **env: str) -> None:
    run(session, stack, "python", "-m", "pytest", *WORKERS, *arguments, OMP_NUM_THREADS="1", **env)


def run_operator_tests(session: nox.Session, *arguments: str) -> None:
    """Runs tests of operators once more: in Triton's interpreter and, where there is a GPU, on it."""
    if HAS_CUDA:
        run_pytest(session, "cuda", *arguments)
    run_pytest(session, "ascend", *arguments, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@shared("tests", "Run every test, then the operators' once more in Triton's interpreter (and on the GPU, if any).", "ascend", DEVICE_STACK)
def tests(session: nox.Session) -> None:
    # To stay below 40 minutes on two cores; the gate of the other three SoCs is in compile-<op> and in test-<op>, which runs every night.
    once = ("-k", "not (test_compiles and (910B1 or 910B2 or 910B3))")
    run_pytest(session, "ascend", "runtime", "ci/tests", "packages", *once, *session.posargs, CUDA_VISIBLE_DEVICES="")
    run_operator_tests(session, "packages", *session.posargs)


@shared("test-ci", "Run the tests of what lies under ci/.", "ascend")
def test_ci(session: nox.Session) -> None:
    run_pytest(session, "ascend", "ci/tests", *session.posargs)


def example_tests(paths: Sequence[str]) -> list[str]:
    """Where the tests of pages and programs are, for pytest."""
    return [
        f"ci/tests/test_{Path(path).stem}.py" if path.endswith(".py") else f"ci/tests/test_readme.py::test_the_examples_run[{path}]"
        for path in paths
    ]


@shared("test-examples", "Run the code of pages and the programs under docs/, or of those named: `-- docs/getting-started.md`.", "ascend")
def test_examples(session: nox.Session) -> None:
    run_pytest(session, "ascend", *example_tests(session.posargs or sorted(examples(ROOT))), CUDA_VISIBLE_DEVICES="")


@shared("lint", "Check style, who imports whom, workflows, changelog fragments and the rules of the repository.", "ascend")
def lint(session: nox.Session) -> None:
    run(session, "ascend", "ruff", "check", ".")
    run(session, "ascend", "ruff", "format", "--check", ".")
    run(session, "ascend", "python", "ci/imports.py")
    run(session, "ascend", "python", "ci/checks.py")
    run(session, "ascend", "npu-lab", "scoreboard", "--check")
    workflows = map(str, Path(".github/workflows").glob("*.yml"))
    run(session, "ascend", "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    run(session, "ascend", "python", "ci/workflows.py")
    run(session, "ascend", "zizmor", "--offline", ".github")
    for found in distributions():
        fragments = ("--draft", "--config", "pyproject.toml", "--dir", str(found.folder), "--name", found.name, "--version", "next")
        run(session, "ascend", "towncrier", "build", *fragments)


@shared("types", "Check types with mypy: strictly in runtime/core, plainly elsewhere.", "ascend")
def types(session: nox.Session) -> None:
    sources = {found.short: str(found.source) for found in distributions()}
    run(session, "ascend", "mypy", "--strict", sources.pop("runtime"))
    run(session, "ascend", "mypy", *sources.values(), "noxfile.py", "ci/releasing", *map(str, Path("ci").glob("*.py")))


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Build the site into site/, failing on a broken link; `nox -s docs -- serve` shows it while you write."""
    session.install("-c", CONSTRAINTS, *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "docs"))
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]))


@shared("wave", "Release npu-ops, a known-good set of what was released last: `-- 2026.12` tries it, `--execute` also tags.", "ascend")
def wave(session: nox.Session) -> None:
    run(session, "ascend", "python", "ci/release.py", "wave", *session.posargs)


@shared("publish", "What the workflow of a tag runs: `-- npu-op-geglu-v0.2.0` builds, tries and describes that release.", "ascend")
def publish(session: nox.Session) -> None:
    run(session, "ascend", "python", "ci/release.py", "publish", *session.posargs)


@nox.session(name="lowest-runtime", python="3.11", requires=["prepare-ascend"])
def lowest_runtime(session: nox.Session) -> None:
    """Run the operators' tests on the oldest runtime that each declares to work with."""
    build(session, "runtime", *[found for found in distributions() if found.short == "runtime"])
    lab = next(found for found in distributions() if found.short == "lab")
    also = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test")
    folders = [str(operator.folder) for operator in operators()]
    source = ("-c", CONSTRAINTS, "--find-links", "dist/runtime")
    session.install(*source, "torch", f"{lab.folder}[compiler,test]", *also, *folders)
    put_triton_ascend_back(session)
    for lowest in sorted({operator.lowest_runtime for operator in operators()}):
        # --no-deps: a CUDA build of torch would ask for `triton` again.
        session.install(*source, "--no-deps", f"npu-op-runtime=={lowest}")
        chosen = [str(operator.folder / "tests") for operator in operators() if operator.lowest_runtime == lowest]
        command = ("python", "-m", "pytest", *WORKERS, *chosen, *session.posargs)
        session.run(*command, env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})


def build(session: nox.Session, into: str, *built: Distribution) -> list[str]:
    """Builds sdists and wheels into dist/<into>, checks what is in them, and returns the wheels."""
    target = ROOT / "dist" / into
    shutil.rmtree(target, ignore_errors=True)
    for distribution in built:
        with session.chdir(distribution.folder):
            run(session, "ascend", "hatch", "build", str(target))
    run(session, "ascend", "python", "ci/artifacts.py", str(target))
    return [str(wheel) for wheel in target.glob("*.whl")]


def register_build(distribution: Distribution) -> None:
    def session_build(session: nox.Session) -> None:
        needed = [found for found in distributions() if found.name in {distribution.name, "npu-op-runtime"}]
        wheels = build(session, distribution.short, *needed)
        session.install("-c", CONSTRAINTS, *wheels)
        session.run("python", "ci/readme.py", str(distribution.folder / "README.md"))
        sdists = [str(sdist) for sdist in (ROOT / "dist" / distribution.short).glob("*.tar.gz")]
        session.install("-c", CONSTRAINTS, "--no-deps", "--force-reinstall", *sdists)
        session.run("python", "ci/readme.py", str(distribution.folder / "README.md"))
        # Never reused: it proved that the wheels need nothing else.
        shutil.rmtree(session.virtualenv.location)

    session_build.__doc__ = f"Build {distribution.name}, check wheel and sdist, run the README's examples from each in a clean environment."
    name, tags = f"build-{distribution.short}", [distribution.short]
    nox.session(name=name, python="3.11", requires=["prepare-ascend"], tags=tags)(session_build)


def register_release(distribution: Distribution) -> None:
    short = distribution.short

    @shared(f"release-{short}", f"Release {distribution.name}: `-- minor` tries everything, `-- minor --execute` also tags.", "ascend")
    def release(session: nox.Session) -> None:
        run(session, "ascend", "python", "ci/release.py", "prepare", short, *session.posargs)


def register_test(distribution: Distribution) -> None:
    short, folder = distribution.short, str(distribution.folder)
    on_device = distribution in operators()
    doc = f"Run the tests of {short}: eager, interpreter and, if any, GPU." if on_device else f"Run the tests of {distribution.name}."

    @shared(f"test-{short}", doc, "ascend", *[DEVICE_STACK] * on_device, tags=[short])
    def test(session: nox.Session) -> None:
        run_pytest(session, "ascend", folder, *session.posargs, CUDA_VISIBLE_DEVICES="")
        if on_device:
            run_operator_tests(session, folder, *session.posargs)


def register_lab(operator: Distribution) -> None:
    op = operator.short

    def lab_session(command: str, doc: str, stack: Stack, *tags: str) -> None:
        @shared(f"{command}-{op}", doc, stack, tags=tags)
        def lab(session: nox.Session) -> None:
            run(session, stack, "npu-lab", command, op, *session.posargs)

    lab_session("bench", f"Benchmark {op} at the shapes of published models: measured on an NPU or GPU, else modelled.", DEVICE_STACK)
    lab_session("compile", f"Compile every case of {op} for the Ascend SoCs: UB, double buffering, scalar loops.", "ascend", op)
    lab_session("emulate", f"Execute the compiled kernels of {op} in the emulator: values, hazards, modelled time.", "ascend")
    lab_session("tolerance", f"Print the error of {op} and of eager PyTorch against fp64, per tensor.", DEVICE_STACK)


# Sessions with the tag <op> are what CI runs when <op> is affected.
for _distribution in distributions():
    register_build(_distribution)
    register_release(_distribution)
    register_test(_distribution)
for _operator in operators():
    register_lab(_operator)


@shared(
    "affected", "Check what a change affects and no more: `nox -s affected -- --base main`; add --why to see why.", "ascend", DEVICE_STACK
)
def affected(session: nox.Session) -> None:
    detector = (sys.executable, "ci/affected.py", *session.posargs)
    if "--why" in session.posargs:
        session.run(*detector, external=True)
        return
    found = json.loads(str(session.run(*detector, "--json", external=True, silent=True)))
    session.log(f"affected: {', '.join([*found['packages'], *found['examples'], *['docs'] * found['docs']]) or 'nothing but lint'}")
    lint(session)
    chosen = [distribution for distribution in distributions() if distribution.short in found["packages"]]
    chosen_operators = [operator for operator in operators() if operator in chosen]
    also = ["ci/tests"] if found["all"] else example_tests(found["examples"])
    selection = [*also, *(str(distribution.folder) for distribution in chosen)]
    if selection:
        run_pytest(session, "ascend", *selection, CUDA_VISIBLE_DEVICES="")
    if chosen_operators:
        run_operator_tests(session, *(str(operator.folder) for operator in chosen_operators))
    for operator in chosen_operators:
        run(session, "ascend", "npu-lab", "compile", operator.short)
    if found["docs"]:
        session.notify("docs", posargs=[])


@shared("new-op", "Make a new operator that is green as it comes: `nox -s new-op -- my-op`.", "ascend")
def new_op(session: nox.Session) -> None:
    run(session, "ascend", "python", "ci/new_op.py", *session.posargs)
    # Its figures, which lint asks for: it has to be installed for that.
    (name,) = session.posargs
    run(session, "ascend", "python", "-m", "pip", "install", "--quiet", "--no-deps", "--editable", f"packages/{name}")
    run(session, "ascend", "npu-lab", "scoreboard", name)


@shared("bench-all", "Benchmark every operator, one after the other.", DEVICE_STACK)
def bench_all(session: nox.Session) -> None:
    for operator in operators():
        run(session, DEVICE_STACK, "npu-lab", "bench", operator.short, *session.posargs)


@shared(
    "scoreboard",
    "Generate the table of Liger's RFC, modelled, in docs/ and README; `-- rope`: the figures of that operator alone.",
    "ascend",
)
def scoreboard(session: nox.Session) -> None:
    run(session, "ascend", "npu-lab", "scoreboard", *session.posargs)
