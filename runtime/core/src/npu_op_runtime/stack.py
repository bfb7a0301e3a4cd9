"""What of the kernel stack is installed, what is wrong with it, and the command that mends it. Imports neither Triton nor torch_npu."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

REINSTALL_TRITON_ASCEND = "pip uninstall -y triton && pip install --force-reinstall --no-deps triton-ascend==3.2.0"
INSTALL_ASCEND = "pip install 'npu-op-runtime[ascend]'"
INSTALL_CUDA = "pip install 'npu-op-runtime[cuda]'"

# Where CANN's installer puts it when ASCEND_HOME_PATH is not set.
_CANN_DEFAULT = Path("/usr/local/Ascend")


@dataclass(frozen=True)
class Finding:
    """One line of the report: `level` "ok", "note" or "problem"; `remedy` is the command or step that mends a problem."""

    level: Literal["ok", "note", "problem"]
    what: str
    remedy: str = ""


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def diagnose() -> list[Finding]:
    """Looks at the installed distributions and at CANN, in the order in which a user meets them."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (_torch, _triton, _torch_npu, _cann)
    return [finding for check in checks for finding in check()]


def triton_problem(backend: str) -> str | None:
    """Why Triton kernels cannot run on `backend` ("npu", "cuda", "interpreter"), with the command that mends it; None if they can."""
    ascend, community = version_of("triton-ascend"), version_of("triton")
    if backend == "npu" and ascend is None:
        return f"triton-ascend is not installed; run: {INSTALL_ASCEND}"
    if ascend and community:
        return f"triton {community} and triton-ascend {ascend} overwrite each other; run: {REINSTALL_TRITON_ASCEND}"
    if ascend is None and importlib.util.find_spec("triton") is None:
        return f"Triton is not installed; run: {INSTALL_CUDA} (CUDA) or {INSTALL_ASCEND} (Ascend)"
    if ascend and importlib.util.find_spec("pybind11") is None:
        return "triton-ascend needs pybind11 and does not declare it; run: pip install pybind11"
    return None


def _torch() -> Iterator[Finding]:
    installed = version_of("torch")
    if installed is None:
        yield Finding("problem", "torch is not installed", "pip install 'torch>=2.6'")
    else:
        yield Finding("ok", f"torch {installed}")


def _triton() -> Iterator[Finding]:
    ascend, community = version_of("triton-ascend"), version_of("triton")
    if ascend is None and community is None:
        yield Finding("note", "no Triton: operators run their eager reference on the CPU", f"{INSTALL_ASCEND} or {INSTALL_CUDA}")
        return
    problem = triton_problem("npu" if ascend else "cuda")
    if problem:
        what, _, remedy = problem.partition("; run: ")
        yield Finding("problem", what, remedy)
    else:
        yield Finding("ok", f"triton-ascend {ascend}" if ascend else f"triton {community}")
    if ascend and _numpy_too_new():
        what = f"numpy {version_of('numpy')}: the interpreter of triton-ascend 3.2.0 needs numpy < 2.4"
        yield Finding("problem", what, "pip install 'numpy<2.4'")


def _numpy_too_new() -> bool:
    installed = version_of("numpy")
    return installed is not None and tuple(int(part) for part in installed.split(".")[:2]) >= (2, 4)


def _torch_npu() -> Iterator[Finding]:
    installed = version_of("torch-npu")
    if installed is None:
        if version_of("triton-ascend"):
            yield Finding("note", "no torch-npu: kernels run in the interpreter, the offline compiler and the emulator", INSTALL_ASCEND)
        return
    if cann_path() is None:
        yield Finding(
            "problem",
            f"torch-npu {installed} is installed but CANN is not found (ASCEND_HOME_PATH is not set, {_CANN_DEFAULT} does not exist)",
            "install the CANN toolkit, then: source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        )
        return
    try:
        importlib.import_module("torch_npu")
    except Exception as error:  # whatever its loader raises is what the user must read
        remedy = "match torch, torch-npu and CANN by torch-npu's version table"
        yield Finding("problem", f"torch-npu {installed} does not import: {error}", remedy)
    else:
        yield Finding("ok", f"torch-npu {installed}")


def _cann() -> Iterator[Finding]:
    path = cann_path()
    if path is not None:
        yield Finding("ok", f"CANN at {path}")


def cann_path() -> Path | None:
    """The CANN toolkit: ASCEND_HOME_PATH, else the installer's default; None if neither is a directory."""
    named = os.environ.get("ASCEND_HOME_PATH")
    path = Path(named) if named else _CANN_DEFAULT
    return path if path.is_dir() else None
