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


class _Compiled:
    """What Triton compiled for the like of a call, with what every launch of it shares.

    A launch goes to the function that Triton made for these arguments, with addresses for tensors: Triton's own way there makes a
    description of each launch for its hooks, whether there are any or not, and asks the driver where each tensor lies.
    """

    def __init__(self, kernel: Any, compiled: Any, constants: tuple[Any, ...]) -> None:
        self._kernel = kernel  # held, so that no other kernel gets its id
        self._compiled, self._constants = compiled, constants
        launcher = compiled.run
        self._launch = launcher.launch
        self._scratch = launcher.global_scratch_size or launcher.profile_scratch_size
        options = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl
        self._shared = (*options, None, None, compiled.packed_metadata, None, None, None)

    def __call__(self, programs: int, device: int, args: tuple[Any, ...]) -> None:
        """Takes the kernel's arguments but its constants, addresses for tensors."""
        if self._scratch or _launches_are_watched():
            self._compiled[(programs, 1, 1)](*args, *self._constants)
            return
        stream = torch._C._cuda_getCurrentRawStream(device)
        self._launch(programs, 1, 1, stream, *self._shared, *args, *self._constants)


@functools.cache
def _knobs() -> Any:
    return importlib.import_module("triton").knobs.runtime


def _launches_are_watched() -> bool:
    """Whether somebody, a profiler say, has hooked into Triton's launches."""
    knobs = _knobs()
    enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
    # A chain of hooks, or what somebody put in its place.
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


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


class Launch:
    """A launch of which all but the tensors is settled. An operator keeps it (`functools.lru_cache`) for the like of a call.

    Args:
        module: of the kernel.
        name: of the kernel, which takes the tensors, then `numbers`, then constants.
        programs: of the grid, as of `launch`.
        target: what it was planned for.
        numbers: the kernel's run-time arguments behind the tensors.
        num_warps: CUDA only.
        **constants: the kernel's constexpr arguments.

    A call takes the tensors, all of one device, every time of the same dtypes: what it is kept by must tell those apart.
    """

    def __init__(
        self, module: str, name: str, programs: int, target: Target, numbers: tuple[Any, ...], *, num_warps: int = 4, **constants: Any
    ) -> None:
        self._module, self._name, self._programs, self._target = module, name, programs, target
        self._numbers, self._num_warps, self._constants = numbers, num_warps, constants
        # By kernel, device and alignments, which Triton compiles for.
        self._ready: dict[tuple[int | None, ...], _Compiled] = {}

    def __call__(self, *tensors: torch.Tensor | None) -> None:
        anchor = tensors[0] if tensors[0] is not None else next(tensor for tensor in tensors if tensor is not None)
        kernel = getattr(load_kernels(self._module, self._target.backend), self._name)
        key: tuple[int | None, ...] = ()
        if self._target.backend == "cuda":
            device = anchor.device.index
            addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
            key = (id(kernel), device, *[None if address is None else address % 16 for address in addresses])
            ready = self._ready.get(key)
            if ready is not None and device == torch.cuda.current_device():
                ready(self._programs, device, (*addresses, *self._numbers))
                return
        found = launch(
            kernel, self._programs, self._target, anchor, *tensors, *self._numbers, num_warps=self._num_warps, **self._constants
        )  # fmt: skip
        if found is not None:
            self._ready[key] = found


def dtypes_of(*tensors: torch.Tensor | None) -> tuple[torch.dtype | None, ...]:
    """For what a `Launch` is kept by."""
    return tuple([None if tensor is None else tensor.dtype for tensor in tensors])


def launch(
    kernel: Any, programs: int, target: Target, anchor: torch.Tensor, *args: Any, num_warps: int = 4, **constants: Any
) -> _Compiled | None:
    """Launches `kernel` as a 1-D grid on the device of `anchor`; no programs, no launch.

    `num_warps` is passed on CUDA only (Ascend ignores it with a warning). Constants are the kernel's constexpr arguments.

    Returns:
        On CUDA, what Triton compiled for the like of this call, where it can be launched as such.

    Raises:
        ValueError: more programs than the NPU launches.
    """
    if programs == 0:
        return None
    if target.backend == "cuda" and anchor.device.type == "cuda":
        if anchor.device.index == torch.cuda.current_device():  # entering the device of a tensor costs as much as the rest of this
            return _launch_cuda(kernel, programs, anchor.device.index, num_warps, args, constants)
        with torch.cuda.device(anchor.device):
            return _launch_cuda(kernel, programs, anchor.device.index, num_warps, args, constants)
    if programs > MAX_GRID and target.backend != "cuda":
        raise ValueError(f"programs must be at most {MAX_GRID} on the NPU (got {programs})")
    if anchor.device.type == "npu":
        with torch.npu.device(anchor.device):  # type: ignore[attr-defined]  # added by torch_npu
            kernel[(programs,)](*args, **constants)
    else:
        kernel[(programs,)](*args, **constants)
    return None


def _launch_cuda(
    kernel: Any, programs: int, device: int, num_warps: int, args: tuple[Any, ...], constants: dict[str, Any]
) -> _Compiled | None:
    """Launches what Triton compiled for the like of this call before: Triton's own search for it takes longer than the launch.

    Triton compiles anew for another dtype, alignment to 16 bytes or size class of an integer. The key holds the integers themselves, so it
    never takes two calls for one that Triton would tell apart.
    """
    if not _compiled_kernels_take_constants():
        kernel[(programs,)](*args, num_warps=num_warps, **constants)
        return None
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
        found(programs, device, tuple([arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]))
        return found
    compiled = kernel[(programs,)](*args, num_warps=num_warps, **constants)
    if len(_compiled) >= _MAX_COMPILED:  # more, where threads have added theirs at once
        _compiled.clear()
    found = _compiled[key] = _Compiled(kernel, compiled, tuple([constants[name] for name in kernel.arg_names[len(args) :]]))
    return found


@functools.cache
def _compiled_kernels_take_constants() -> bool:
    # True since Triton 3.3, but the call of a compiled kernel may change again: held to the version that this is tested with.
    version: str = importlib.import_module("triton").__version__
    return version.startswith("3.6.")
