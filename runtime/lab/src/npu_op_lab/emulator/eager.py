"""What PyTorch's own kernels would take: every ATen kernel moves its bytes at full bandwidth and pays a launch.

The model is generous to eager: no kernel is ever slower than the memory, whatever it computes; a kernel's intermediate results cost
nothing; views and allocations are free; of a table, what picks rows or elements by an index touches no more than it picks; a launch
costs the same stated time as one of ours; and L2 keeps what the kernels before have touched, least recently used first out, so that a
chain of kernels on tensors that fit moves only its inputs and outputs from and to HBM (ours pay HBM for everything that a kernel
touches first). It holds on any device, meta and fake tensors included, so that big shapes cost nothing.

A matrix product runs on the cube cores at the rate that public measurements reach with large ones, or at that of its memory traffic if
that is slower; small and transposed operands cost it nothing more. Convolutions and attention are not covered.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from npu_op_runtime.soc import Soc, get_soc

from ..watch import UNWRITTEN, ThroughOps, name_of
from . import costs

# Allocations and metadata: no kernel runs.
FREE = frozenset(
    (
        *(*UNWRITTEN, "set_", "resize_", "lift_fresh", "_unsafe_view"),
        *("is_same_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "_has_compatible_shallow_copy_type"),
    )
)
# Write their result and read nothing.
WRITE_ONLY = frozenset(
    (
        *("zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "fill_"),
        *("arange", "rand_like", "randn_like", "uniform_", "normal_"),
    )
)
# Read of their first tensor what they pick, whatever its size: at most an element for each of the result's.
_PICKING = frozenset(("index_select", "embedding", "gather", "index", "take"))
# Change of their first tensor, in place, an element for each of the last one's.
_ADDING = frozenset(("index_add_", "scatter_add_"))
PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_"))
_OTHER_CUBE = frozenset(
    (
        *("addbmm", "dot", "mv", "addmv", "linear", "_scaled_mm", "convolution", "convolution_backward"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    )
)


@dataclass(frozen=True)
class Touch:
    """A tensor that a kernel reads or writes: which memory, how many bytes."""

    memory: int
    bytes: int
    writes: bool


@dataclass(frozen=True)
class AtenKernel:
    """One ATen kernel: its name, the bytes that it must read and write, and of which memory.

    A matrix product also has its floating-point operations (a multiplication and an addition are two) and the dtype of its operands.
    """

    name: str
    bytes: int
    touches: tuple[Touch, ...] = ()
    flops: int = 0
    operands: torch.dtype | None = None


@dataclass(frozen=True)
class Freed:
    """Memory that was given back: what L2 still holds of it is never written to HBM."""

    memory: int


@dataclass(frozen=True)
class Passed:
    """What a kernel that is timed elsewhere reads and writes: here it only changes what L2 holds.

    Its writes are in HBM already, except those to the memories in `pending`, which are still to be written there.
    """

    touches: tuple[Touch, ...]
    pending: frozenset[int] = frozenset()


Log = Sequence["AtenKernel | Freed | Passed"]


@dataclass(frozen=True)
class EagerTiming:
    """Modelled time of a computation as eager PyTorch runs it.

    Attributes:
        kernels: in order.
        seconds: all of them, launches included.
        bytes: read and written in all; hbm_bytes: of these, from and to HBM.
        soc, ceiling: what it was modelled for.
    """

    kernels: tuple[AtenKernel, ...]
    seconds: float
    bytes: int
    hbm_bytes: int
    soc: str
    ceiling: costs.Ceiling


class AtenRecorder(ThroughOps):
    """Keeps the ATen kernels that run within it, inside registered ops too, and when memory is given back."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[AtenKernel | Freed | Passed] = []
        self._memory: dict[weakref.ref[Any], int] = {}

    def aten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.call(func, args, kwargs)
        touches = tuple(self._touches(func, args, kwargs, result))
        if touches:
            name = name_of(func)
            flops, operands = _product(name, args, result) if name in PRODUCTS else (0, None)
            self.log.append(AtenKernel(name, sum(touch.bytes for touch in touches), touches, flops, operands))
        return result

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the result of an ATen call."""
        return super().aten(func, args, kwargs)

    def _touches(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Iterator[Touch]:
        """What a kernel must move: each input read once, each output written once, of a table what is picked."""
        name = name_of(func)
        if name in FREE or func.is_view:
            return
        read = {argument: value for argument, value in kwargs.items() if argument != "out"}
        inputs = [leaf for leaf in tree_leaves((args, read)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if name == "_to_copy" and outputs[0] is inputs[0]:
            return
        if name in WRITE_ONLY:
            inputs = []
        elif name == "copy_":
            inputs = inputs[1:]
        part = _part(name, args, inputs, outputs)
        for tensor in {id(tensor): tensor for tensor in inputs}.values():
            yield Touch(self.identify(tensor), part.get(id(tensor), _size(tensor)), writes=False)
        for tensor in outputs:
            yield Touch(self.identify(tensor), part.get(id(tensor), _size(tensor)), writes=True)

    def identify(self, tensor: torch.Tensor) -> int:
        """The memory of a tensor, as `Touch` names it."""
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._freed)
        return self._memory.setdefault(reference, len(self._memory))

    def _freed(self, reference: weakref.ref[Any]) -> None:
        self.log.append(Freed(self._memory[reference]))


def model_eager(
    function: Callable[..., Any], *args: Any, soc: str = "Ascend910B4", ceiling: costs.Ceiling = "measured", **kwargs: Any
) -> EagerTiming:
    """Run `function(*args, **kwargs)` and model the time of its ATen kernels; a backward pass inside it counts too.

    What the function returns is written to HBM; what it lets go of is not.

    Raises:
        NotImplementedError: an operation of the cube core that is no matrix product of 16 or 32 bits, by name.
        ValueError: unknown `soc` or `ceiling`, or a matrix product on a SoC without a cube rate.
    """
    with AtenRecorder() as recorder:
        kept = function(*args, **kwargs)
    timing = eager_timing(recorder.log, get_soc(soc), ceiling)
    del kept
    return timing


def eager_timing(log: Log, soc: Soc, ceiling: costs.Ceiling) -> EagerTiming:
    """The time of recorded ATen kernels, L2 cold at the start."""
    bandwidth = costs.gm_bandwidth(soc, ceiling)
    l2_bandwidth = soc.vector_cores * costs.table()["dma_bytes_per_cycle_in"] * soc.clock_hz
    l2 = L2(soc.l2_bytes)
    kernels, seconds, hbm_bytes, idle = [], 0.0, 0, 0.0
    for entry in log:
        missing, written = l2.follow(entry)
        if not isinstance(entry, AtenKernel):
            seconds += written / bandwidth
            hbm_bytes += written
            continue
        if entry.name in _OTHER_CUBE:
            raise NotImplementedError(f"aten::{entry.name} runs on the cube core, of which the eager model covers matrix products only")
        hbm = missing + written
        cube = entry.flops / costs.cube_rate(soc, entry.operands, ceiling) if entry.operands else 0.0
        seconds += max(hbm / bandwidth, entry.bytes / l2_bandwidth, cube) + costs.table()["launch_seconds"]
        idle += max(0.0, cube - hbm / bandwidth)
        hbm_bytes += hbm
        kernels.append(entry)
    rest = l2.dirty()
    # While the cube works HBM has time for what L2 writes back.
    seconds += max(0.0, rest / bandwidth - idle)
    total = sum(kernel.bytes for kernel in kernels)
    return EagerTiming(tuple(kernels), seconds, total, hbm_bytes + rest, soc.name, ceiling)


class L2:
    """Which tensors L2 holds, least recently used first, and whether HBM lacks their values.

    Args:
        capacity: bytes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: OrderedDict[int, tuple[int, bool]] = OrderedDict()

    def follow(self, entry: AtenKernel | Freed | Passed) -> tuple[int, int]:
        """Bytes that an entry reads from HBM because they are missing, and that must be written there to make room."""
        if isinstance(entry, Freed):
            self._held.pop(entry.memory, None)
            return 0, 0
        moved = [self._touch(touch, clean=isinstance(entry, Passed) and touch.memory not in entry.pending) for touch in entry.touches]
        return sum(missing for missing, _ in moved), sum(written for _, written in moved)

    def holds(self, memory: int, size: int) -> bool:
        """Whether `size` bytes of a memory are there."""
        return self._held.get(memory, (0, False))[0] >= size

    def dirty(self) -> int:
        """Bytes that are still to be written to HBM."""
        return sum(held for held, dirty in self._held.values() if dirty)

    def _touch(self, touch: Touch, clean: bool) -> tuple[int, int]:
        size, dirty = self._held.pop(touch.memory, (0, False))
        if touch.bytes > self.capacity:
            return (0, touch.bytes) if touch.writes and not clean else (touch.bytes, 0)  # it streams past
        missing = 0 if touch.writes else max(touch.bytes - size, 0)
        self._held[touch.memory] = max(size, touch.bytes), not clean if touch.writes else dirty
        written = 0
        while sum(held for held, _ in self._held.values()) > self.capacity:
            _, (held, was_dirty) = self._held.popitem(last=False)
            written += held if was_dirty else 0
        return missing, written


def _product(name: str, args: tuple[Any, ...], result: torch.Tensor) -> tuple[int, torch.dtype]:
    """Floating-point operations and dtype of the operands, which come last and behind what is added."""
    formula = flop_registry[getattr(torch.ops.aten, name.rstrip("_"))]
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return formula(*tensors, out_val=result), tensors[-1].dtype


def _part(name: str, args: tuple[Any, ...], inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> dict[int, int]:
    """Bytes of the tensors (by `id`) of which a kernel touches a part: data say which, sizes say how much at most."""
    if name in _PICKING:
        whole, picked = inputs[0], outputs[0].numel()
    elif name in _ADDING:
        whole, picked = inputs[0], inputs[-1].numel()
    elif name == "nll_loss_forward":
        whole, picked = args[0], args[1].numel()
    elif name == "nll_loss_backward":  # asks its second argument for the shape
        whole, picked = args[1], 0
    else:
        return {}
    return {id(whole): min(_size(whole), picked * whole.element_size())}


def _size(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements: an expanded axis is one element wide; a number wrapped as a 0-d fp64 tensor is none."""
    if tensor.dim() == 0 and tensor.dtype == torch.float64:
        return 0
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride or not length else 1
    return elements * tensor.element_size()
