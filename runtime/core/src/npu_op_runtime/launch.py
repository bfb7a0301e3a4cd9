"""How an operator reaches its Triton kernels: import them with an explanation, launch them on the right device."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch

from .device import Target
from .stack import triton_problem
from .tiling import MAX_GRID


@functools.cache
def load_kernels(module: str, backend: str) -> ModuleType:
    """The kernel module of an operator, imported at the first launch so that packages import without Triton.

    Raises:
        ImportError: Triton is missing, is the wrong flavour for `backend`, or fails to import; names the command that mends it.
    """
    problem = triton_problem(backend)
    if problem:
        raise ImportError(f"{module} cannot run on {backend}: {problem}")
    return importlib.import_module(module)


def launch(kernel: Any, programs: int, target: Target, anchor: torch.Tensor, *args: Any, num_warps: int = 4, **constants: Any) -> None:
    """Launches `kernel` as a 1-D grid on the device of `anchor`; no programs, no launch.

    `num_warps` is passed on CUDA only (Ascend ignores it with a warning). Constants are the kernel's constexpr arguments.

    Raises:
        ValueError: more programs than the NPU launches.
    """
    if programs == 0:
        return
    if target.backend == "cuda":
        if anchor.device.index == torch.cuda.current_device():  # entering the device of a tensor costs as much as the rest of this
            kernel[(programs,)](*args, num_warps=num_warps, **constants)
            return
        with torch.cuda.device(anchor.device):
            kernel[(programs,)](*args, num_warps=num_warps, **constants)
        return
    if programs > MAX_GRID:
        raise ValueError(f"programs must be at most {MAX_GRID} on the NPU (got {programs})")
    if anchor.device.type == "npu":
        with torch.npu.device(anchor.device):  # type: ignore[attr-defined]  # added by torch_npu
            kernel[(programs,)](*args, **constants)
    else:
        kernel[(programs,)](*args, **constants)
