"""How an operator reaches its Triton kernels: import them with an explanation, launch them on the right device."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

import torch

from .device import Target
from .stack import triton_problem
from .tiling import MAX_GRID


class _Compiled(NamedTuple):
    kernel: Any  # held, so that no other kernel gets its id
    compiled: Any
    constants: tuple[Any, ...]


# By everything that Triton compiles a kernel for.
_compiled: dict[tuple[Any, ...], _Compiled] = {}
_MAX_COMPILED = 4096  # every row count has an entry of its own


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
            _launch_cuda(kernel, programs, anchor.device.index, num_warps, args, constants)
            return
        with torch.cuda.device(anchor.device):
            _launch_cuda(kernel, programs, anchor.device.index, num_warps, args, constants)
        return
    if programs > MAX_GRID:
        raise ValueError(f"programs must be at most {MAX_GRID} on the NPU (got {programs})")
    if anchor.device.type == "npu":
        with torch.npu.device(anchor.device):  # type: ignore[attr-defined]  # added by torch_npu
            kernel[(programs,)](*args, **constants)
    else:
        kernel[(programs,)](*args, **constants)


def _launch_cuda(kernel: Any, programs: int, device: int, num_warps: int, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Launches what Triton compiled for the like of this call before: Triton's own search for it takes longer than the launch.

    Triton compiles anew for another dtype, alignment to 16 bytes or size class of an integer. The key holds the integers themselves, so it
    never takes two calls for one that Triton would tell apart.
    """
    if not _compiled_kernels_take_constants():
        kernel[(programs,)](*args, num_warps=num_warps, **constants)
        return
    # Most arguments are plain integers, and asking for that first makes the key in half the time.
    operands = [
        arg if type(arg) is int
        else (arg.dtype, arg.data_ptr() % 16) if isinstance(arg, torch.Tensor)
        else float if isinstance(arg, float)
        else arg
        for arg in args
    ]  # fmt: skip
    key = (id(kernel), device, num_warps, *constants, *constants.values(), *operands)
    found = _compiled.get(key)
    if found is not None:
        found.compiled[(programs, 1, 1)](*args, *found.constants)
        return
    compiled = kernel[(programs,)](*args, num_warps=num_warps, **constants)
    if len(_compiled) == _MAX_COMPILED:
        _compiled.clear()
    _compiled[key] = _Compiled(kernel, compiled, tuple([constants[name] for name in kernel.arg_names[len(args) :]]))


@functools.cache
def _compiled_kernels_take_constants() -> bool:
    # True since Triton 3.3, but the call of a compiled kernel may change again: held to the version that this is tested with.
    version: str = importlib.import_module("triton").__version__
    return version.startswith("3.6.")
