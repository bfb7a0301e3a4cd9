"""What a record says of the machine, the installed stack and the state of the sources."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from npu_op_runtime.stack import cann_path, version_of

_STACK = ("triton", "triton-ascend", "torch-npu", "ascendnpu-ir", "numpy", "liger-kernel", "npu-op-runtime", "npu-op-lab")


@functools.cache
def environment() -> dict[str, Any]:
    """Versions of everything that a figure depends on; None for what is not installed."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if torch.cuda.is_available() else None,
        "cann": getattr(torch.version, "cann", None) or (str(cann_path()) if cann_path() else None),
        **{name.replace("-", "_"): version_of(name) for name in _STACK},
    }


@functools.cache
def git_state(folder: Path) -> dict[str, Any]:
    """Commit of the repository that holds `folder` and whether its tree differs from it; None outside of a repository."""
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
