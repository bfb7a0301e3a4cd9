"""Runs bishengir-compile 1.2.0 (PyPI ascendnpu-ir) on the front end's linalg IR and keeps the HIVM IR it ends with."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ascendnpuir

from .errors import CompileError, UbOverflow

_BIN = Path(ascendnpuir.__file__).parent / "bin"

# `hivmc`, the last step of bishengir-compile, is part of CANN. The IR is taken before it, so a stand-in that succeeds is enough.
_HIVMC = """#!/bin/sh
[ "$1" = --version ] && { echo "hivmc 1.2.0"; exit 0; }
while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2.o"; shift; done
"""

# triton-ascend 3.2.0's launch options and the option of bishengir-compile that each becomes on A2/A3.
_OPTIONS = {
    "multibuffer": "enable-auto-multi-buffer",
    "enable_auto_bind_sub_block": "enable-auto-bind-sub-block",
    "enable_hivm_auto_cv_balance": "enable-hivm-auto-cv-balance",
    "sync_solver": "enable-hivm-graph-sync-solver",
    "unit_flag": "enable-hivm-unit-flag-sync",
    "inject_barrier_all": "enable-hivm-inject-barrier-all-sync",
    "inject_block_all": "enable-hivm-inject-block-all-sync",
    "limit_auto_multi_buffer_only_for_local_buffer": "limit-auto-multi-buffer-only-for-local-buffer",
    "set_workspace_multibuffer": "set-workspace-multibuffer",
    "tile_mix_vector_loop": "tile-mix-vector-loop",
    "tile_mix_cube_loop": "tile-mix-cube-loop",
    "limit_auto_multi_buffer_of_local_buffer": "limit-auto-multi-buffer-of-local-buffer",
    "disable_auto_inject_block_sync": "disable-auto-inject-block-sync",
}

_BEFORE = "convert-hivm-to-std"
_OVERFLOW = re.compile(r"ub overflow, requires (\d+) bits while (\d+) bits available", re.IGNORECASE)


@dataclass(frozen=True)
class Hivm:
    """IR text and what the compiler said on the way ("[NOTE]" lines: its retries after a UB overflow)."""

    ir: str
    notes: tuple[str, ...]
    seconds: float


def compile_linalg(linalg: str, *, kernel: str, soc: str, options: Mapping[str, Any]) -> Hivm:
    """HIVM IR of one kernel, generic form with source locations inline, affine maps lowered.

    Args:
        linalg: the front end's output, without its `mix_mode` attribute.
        kernel: name for messages.
        soc: compiler target, `Ascend910B4`.
        options: triton-ascend's compile options; None means the compiler's default.

    Raises:
        UbOverflow: the tiles do not fit, whatever the compiler tried.
        CompileError: any other refusal.
        RuntimeError: the compiler did not end by itself.
    """
    flags = [f"--{flag}={options[name]}" for name, flag in _OPTIONS.items() if options[name] is not None]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="npu-op-lab-") as folder:
        work = Path(folder)
        hivmc = work / "hivmc"
        hivmc.write_text(_HIVMC)
        hivmc.chmod(0o755)
        (work / "kernel.mlir").write_text(linalg)
        command = [
            str(_BIN / "bishengir-compile"), "kernel.mlir", f"--target={soc}", *flags,
            "--enable-hfusion-compile=true", "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true",
            f"--mlir-print-ir-before={_BEFORE}", "--mlir-print-op-generic", "--mlir-print-debuginfo",
            "-o", "kernel",
        ]  # fmt: skip
        environment = {**os.environ, "PATH": os.pathsep.join((folder, os.environ.get("PATH", os.defpath)))}
        run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=folder)
    # The folder ends up in the locations of operations that have no source line: the same kernel must give the same text.
    said = (run.stdout + run.stderr).replace(f"{os.path.realpath(folder)}/", "")
    notes = tuple(line.strip() for line in said.splitlines() if line.startswith("[NOTE]"))
    if run.returncode < 0:
        raise RuntimeError(f"{kernel} for {soc}: bishengir-compile was killed by signal {-run.returncode}")
    if run.returncode:
        overflow = _OVERFLOW.search(said)
        if overflow:
            raise UbOverflow(kernel, soc, int(overflow[1]), int(overflow[2]))
        raise CompileError(f"{kernel} for {soc}: bishengir-compile failed: {_errors(said)}")
    return Hivm(_lower_affine(_last_module(said, kernel, soc), kernel, soc), notes, time.perf_counter() - start)


def _last_module(said: str, kernel: str, soc: str) -> str:
    # A retry dumps again: the last dump is the one that is kept. Notes stand on lines of their own, between or after the dumps.
    _, banner, dump = said.rpartition("// -----// IR Dump Before")
    if not banner:
        raise CompileError(f"{kernel} for {soc}: bishengir-compile printed no IR before {_BEFORE}")
    return "\n".join(line for line in dump.splitlines()[1:] if not line.startswith("["))


def _lower_affine(ir: str, kernel: str, soc: str) -> str:
    # xdsl knows no semi-affine maps and no location aliases: the first are lowered to arith, the second printed in place.
    command = [str(_BIN / "bishengir-opt"), "-", "--lower-affine"]
    command += ["--mlir-print-op-generic", "--mlir-print-debuginfo", "--mlir-print-local-scope"]
    run = subprocess.run(command, check=False, input=ir, capture_output=True, text=True)
    if run.returncode:
        raise CompileError(f"{kernel} for {soc}: bishengir-opt --lower-affine failed: {_errors(run.stderr)}")
    return run.stdout


def _errors(said: str) -> str:
    return "; ".join(line for line in said.splitlines() if "error" in line.lower()) or said.strip()[-500:]
