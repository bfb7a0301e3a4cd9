"""Which backend runs the kernels on a tensor, and what that backend looks like to the tile planner."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch

from .soc import Soc, get_soc

Backend = Literal["npu", "cuda", "interpreter"]

# UB that the interpreter plans for: the smallest SoC, so that its tiles are the NPU's; few cores, so that loops have many trips.
_INTERPRETED_SOC = "Ascend910B4"
_INTERPRETED_CORES = 3

_offline_soc: Soc | None = None
_cuda_form = False


class Target(NamedTuple):
    """What a kernel is planned for. A tuple, because plans are looked up by it at every call.

    Attributes:
        backend: "npu" (also the offline compiler and the emulator), "cuda" (also the interpreter in `cuda_form`) or "interpreter".
        cores: vector cores (npu), multiprocessors (cuda), programs (interpreter).
        ub_bytes: on-chip memory that a tile must fit, bytes (npu and interpreter; 0 on cuda, where the compiler spills).
    """

    backend: Backend
    cores: int
    ub_bytes: int


@contextmanager
def offline(soc: str) -> Iterator[Soc]:
    """Within it, CPU tensors take the kernel path planned for `soc`; the lab's compiler and emulator answer the launches."""
    global _offline_soc
    before, _offline_soc = _offline_soc, get_soc(soc)
    try:
        yield _offline_soc
    finally:
        _offline_soc = before


@contextmanager
def cuda_form() -> Iterator[None]:
    """Within it, interpreted kernels have the tiles and take the branches of CUDA."""
    global _cuda_form
    before, _cuda_form = _cuda_form, True
    try:
        yield
    finally:
        _cuda_form = before


def in_cuda_form() -> bool:
    """Whether interpreted kernels have the form of CUDA."""
    return _cuda_form


def interpreting() -> bool:
    """Whether Triton runs its kernels in the interpreter (it reads the variable when a kernel is defined)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def kernels_on_cpu() -> bool:
    """Whether CPU tensors take the kernel path: under TRITON_INTERPRET=1 or inside `offline`."""
    return _offline_soc is not None or interpreting()


def target_of(tensor: torch.Tensor) -> Target:
    """The target that runs kernels on `tensor`.

    Raises:
        NotImplementedError: a device without kernels, or a CPU tensor outside the interpreter and `offline`.
    """
    kind = tensor.device.type
    if kind == "cpu":
        if _offline_soc is not None:
            return Target("npu", _offline_soc.vector_cores, _offline_soc.ub_bytes)
        if interpreting() and _cuda_form:
            return Target("cuda", _INTERPRETED_CORES, 0)
        if interpreting():
            return Target("interpreter", _INTERPRETED_CORES, get_soc(_INTERPRETED_SOC).ub_bytes)
        raise NotImplementedError("Triton kernels run on CPU tensors only with TRITON_INTERPRET=1 or inside the lab's compiler or emulator")
    if kind == "cuda":
        return _cuda_target(tensor.device.index)
    if kind == "npu":
        return _npu_target(tensor.device.index)
    raise NotImplementedError(f"no kernels for device {kind!r}; allowed: npu, cuda, cpu")


@functools.cache
def _cuda_target(index: int) -> Target:
    return Target("cuda", torch.cuda.get_device_properties(index).multi_processor_count, 0)


@functools.cache
def _npu_target(index: int) -> Target:
    npu: Any = torch.npu  # type: ignore[attr-defined]  # added by torch_npu
    soc = get_soc(npu.get_device_name(index))
    # The live driver knows of disabled cores; the table is the fallback for torch_npu versions without the field.
    cores = getattr(npu.get_device_properties(index), "vector_core_num", soc.vector_cores)
    return Target("npu", cores, soc.ub_bytes)
