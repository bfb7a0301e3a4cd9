"""The ways in which this process can run an operator: the one place that decides what is available."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from npu_op_runtime.device import cuda_form, interpreting
from npu_op_runtime.soc import GATE_SOCS
from npu_op_runtime.stack import triton_problem

from .interpreter import mended

EMULATED_SOCS = ("Ascend910B4", "Ascend910_9391")


@dataclass(frozen=True)
class Mode:
    """One way to run an operator.

    Attributes:
        name: "eager", "interpreter", "cuda_form" (the kernels as they are for CUDA, interpreted), "emulator-Ascend910B4",
            "offline-Ascend910B4", "cuda" or "npu".
        device: of the tensors.
        kernels: Triton kernels run, not the eager reference.
        executes: results are computed; otherwise launches are compiled and recorded and outputs hold what was in memory.
        enter: the context of a call, forward and backward; that of an offline mode yields the recorded launches.
    """

    name: str
    device: str
    kernels: bool
    executes: bool = True
    enter: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def kind(self) -> str:
        """The name without the SoC."""
        return self.name.partition("-")[0]


EAGER = Mode("eager", "cpu", kernels=False)


@functools.cache
def available_modes() -> tuple[Mode, ...]:
    """What can run here. TRITON_INTERPRET=1 turns every kernel of the process into an interpreted one, so nothing else can then."""
    if interpreting():
        return Mode("interpreter", "cpu", kernels=True, enter=mended), Mode("cuda_form", "cpu", kernels=True, enter=_cuda_form)
    modes = [EAGER]
    if has_offline_compiler():
        modes += [offline_mode(soc) for soc in GATE_SOCS]
        modes += [Mode(f"emulator-{soc}", "cpu", True, enter=functools.partial(_emulate, soc)) for soc in EMULATED_SOCS]
    if torch.cuda.is_available() and triton_problem("cuda") is None:
        modes.append(Mode("cuda", "cuda", kernels=True))
    if hasattr(torch, "npu") and torch.npu.is_available():
        modes.append(Mode("npu", "npu", kernels=True))
    return tuple(modes)


def has_offline_compiler() -> bool:
    """Whether triton-ascend and the vendor's compiler are installed."""
    return triton_problem("npu") is None and importlib.util.find_spec("ascendnpuir") is not None


def offline_mode(soc: str) -> Mode:
    """Kernels compiled for `soc` and recorded, not run; entering it yields the list of launches."""
    return Mode(f"offline-{soc}", "cpu", kernels=True, executes=False, enter=functools.partial(_offline, soc))


@contextmanager
def _cuda_form() -> Iterator[None]:
    with mended(), cuda_form():
        yield


def _offline(soc: str) -> AbstractContextManager[Any]:
    from .compiler import offline  # needs triton-ascend, which a CUDA machine does not have

    return offline(soc)


def _emulate(soc: str) -> AbstractContextManager[Any]:
    from .emulator import emulate  # as above

    return emulate(soc)
