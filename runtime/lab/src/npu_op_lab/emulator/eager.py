"""What PyTorch's own kernels would take: every ATen kernel moves its bytes at full bandwidth and pays a launch.

The model is generous to eager: no kernel is ever slower than the memory, a kernel's intermediate results cost nothing, views and
allocations are free, and a launch costs the same stated time as one of ours. It holds on any device, meta and fake tensors
included, so that big shapes cost nothing. The cube core's operations (matrix products, convolutions) are not covered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_op_runtime.soc import Soc, get_soc

from ..watch import ThroughOps
from . import costs

# Allocations and metadata: no kernel runs.
_FREE = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_", "lift_fresh", "_unsafe_view"),
        *("is_same_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "_has_compatible_shallow_copy_type"),
    )
)
# Write their result and read nothing.
_WRITE_ONLY = frozenset(
    (
        *("zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "fill_"),
        *("arange", "rand_like", "randn_like", "uniform_", "normal_"),
    )
)
_CUBE = frozenset(("mm", "bmm", "addmm", "baddbmm", "addbmm", "dot", "mv", "addmv", "convolution", "_scaled_mm", "linear"))


@dataclass(frozen=True)
class AtenKernel:
    """One ATen kernel: its name and the bytes that it must read and write."""

    name: str
    bytes: int


@dataclass(frozen=True)
class EagerTiming:
    """Modelled time of a computation as eager PyTorch runs it.

    Attributes:
        kernels: in order.
        seconds: all of them, launches included.
        bytes: read and written in all.
        soc, ceiling: what it was modelled for.
    """

    kernels: tuple[AtenKernel, ...]
    seconds: float
    bytes: int
    soc: str
    ceiling: costs.Ceiling


class AtenRecorder(ThroughOps):
    """Keeps the ATen kernels that run within it, inside registered ops too."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[AtenKernel] = []

    def aten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().aten(func, args, kwargs)
        moved = _bytes(func, args, kwargs, result)
        if moved:
            self.kernels.append(AtenKernel(func._schema.name.partition("::")[2], moved))
        return result


def model_eager(
    function: Callable[..., Any], *args: Any, soc: str = "Ascend910B4", ceiling: costs.Ceiling = "measured", **kwargs: Any
) -> EagerTiming:
    """Run `function(*args, **kwargs)` and model the time of its ATen kernels; a backward pass inside it counts too.

    Raises:
        NotImplementedError: an operation of the cube core, by name.
        ValueError: unknown `soc` or `ceiling`.
    """
    with AtenRecorder() as recorder:
        function(*args, **kwargs)
    return eager_timing(recorder.kernels, get_soc(soc), ceiling)


def eager_timing(kernels: list[AtenKernel], soc: Soc, ceiling: costs.Ceiling) -> EagerTiming:
    """The time of recorded ATen kernels."""
    for kernel in kernels:
        if kernel.name in _CUBE:
            raise NotImplementedError(f"aten::{kernel.name} runs on the cube core, which the eager model does not cover")
    total = sum(kernel.bytes for kernel in kernels)
    seconds = total / costs.gm_bandwidth(soc, ceiling) + len(kernels) * costs.table()["launch_seconds"]
    return EagerTiming(tuple(kernels), seconds, total, soc.name, ceiling)


def _bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Bytes that a kernel must move: what it reads once, what it writes once."""
    name = func._schema.name.partition("::")[2]
    if name in _FREE or func.is_view:
        return 0
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if name in _WRITE_ONLY:
        inputs = []
    elif name == "copy_":
        inputs = inputs[1:]
    read = {id(tensor): _size(tensor) for tensor in inputs}
    if name == "_to_copy" and outputs and outputs[0] is inputs[0]:
        return 0
    return sum(read.values()) + sum(_size(tensor) for tensor in outputs)


def _size(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements: an expanded axis is one element wide; a number wrapped as a 0-d fp64 tensor is none."""
    if tensor.dim() == 0 and tensor.dtype == torch.float64:
        return 0
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride or not length else 1
    return elements * tensor.element_size()
