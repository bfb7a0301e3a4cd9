"""Which implementation of an operator runs (the Triton kernel, the vendor's fused op, the eager formula), and whether it checks itself."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import torch

from .checks import require_choice
from .device import kernels_on_cpu
from .stack import triton_problem

Implementation = Literal["triton", "vendor", "eager"]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("triton", "vendor", "eager")

# Both read once: a lookup in the environment inside a traced function would break the graph of torch.compile.
# Whether operators assert on the device what they do not check on the host: it would cost a wait.
DEBUG = os.environ.get("NPU_OP_DEBUG", "0") not in ("", "0")
_override = os.environ.get("NPU_OP_IMPLEMENTATION") or None
if _override is not None:
    require_choice("NPU_OP_IMPLEMENTATION", _override, IMPLEMENTATIONS)


class Choice(NamedTuple):
    """What `explain` answers."""

    implementation: Implementation
    reason: str


def choose(tensor: torch.Tensor, implementation: str | None) -> Implementation:
    """The implementation to run on `tensor`: the named one, else NPU_OP_IMPLEMENTATION, else the registered op ("triton").

    The registered op runs the kernel on NPU and CUDA tensors, and on CPU tensors under the interpreter or the lab's offline
    compiler; on other CPU tensors it runs the eager reference, so that a graph traced on a laptop is the graph of the NPU.
    "vendor" is only ever taken by name.

    Raises:
        ValueError: unknown name.
        NotImplementedError: "triton" on a CPU tensor outside the interpreter and the lab.
    """
    named = _override if implementation is None else implementation
    if named is None:
        return "triton"
    if named not in IMPLEMENTATIONS:
        require_choice("implementation", named, (None, *IMPLEMENTATIONS))
    if named == "triton" and tensor.device.type == "cpu" and not kernels_on_cpu():
        raise NotImplementedError(
            "implementation='triton' needs an NPU or CUDA tensor; on a CPU tensor set TRITON_INTERPRET=1 or use the lab's emulate()"
        )
    return named  # type: ignore[return-value]


def explain(tensor: torch.Tensor, implementation: str | None = None) -> Choice:
    """What would run on `tensor` and why; never raises for a known name, says instead why the named one cannot run."""
    if implementation is not None:
        require_choice("implementation", implementation, IMPLEMENTATIONS)
        source = "named in the call"
    elif _override:
        source = "named by NPU_OP_IMPLEMENTATION"
    else:
        source = f"the default for {tensor.device.type} tensors"
    try:
        chosen = choose(tensor, implementation)
    except NotImplementedError as error:
        return Choice("triton", f"{source}, but it cannot run: {error}")
    if tensor.device.type == "cpu" and chosen == "triton" and not kernels_on_cpu():
        return Choice("eager", f"{source}: the registered op runs the reference")
    if chosen == "triton":
        problem = triton_problem(tensor.device.type if tensor.device.type in ("npu", "cuda") else "interpreter")
        if problem:
            return Choice(chosen, f"{source}, but it cannot run: {problem}")
    return Choice(chosen, source)
