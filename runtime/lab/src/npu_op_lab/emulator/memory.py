"""Global memory (the caller's tensors), one core's Unified Buffer, and views into either."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .dtypes import BITS, NUMPY, Array

UB_BYTES = 256 * 1024  # more than any SoC has (A5: 248 KiB); what a kernel may use the compiler has planned
_POISON = 0xFF  # NaN in every floating type, -1 in every integer type


class Memory:
    """A byte range that views point into.

    Attributes:
        name: for messages ("UB", "argument 3").
        size: bytes; an access past it is out of bounds.
        data: the bytes, or None where there are none (meta and fake tensors, results that were not computed): then only time
            can be modelled.
        storage: `_cdata` of the tensors' storage, 0 of no tensor.
    """

    __slots__ = ("data", "name", "size", "storage")

    def __init__(self, name: str, size: int, data: Array | None, storage: int = 0) -> None:
        self.name, self.size, self.data, self.storage = name, size, data, storage


class UnifiedBuffer(Memory):
    """One core's UB; programs run one after another, so one buffer serves all.

    Attributes:
        valid: one byte per UB byte, 0xFF where the running program has written, else 0.
    """

    __slots__ = ("valid",)

    def __init__(self) -> None:
        super().__init__("UB", UB_BYTES, np.empty(UB_BYTES, np.uint8))
        self.valid = np.empty(UB_BYTES, np.uint8)
        self.poison()

    def poison(self) -> None:
        """Forget everything written: what is read from now on without a write is a NaN and is reported."""
        assert self.data is not None
        self.data.fill(_POISON)
        self.valid.fill(0)


# One for the process: the views of a translated kernel are made once and point into it.
UB = UnifiedBuffer()


def tensor_memory(tensor: torch.Tensor, name: str) -> tuple[Memory, int]:
    """The storage of a tensor as memory, and the byte at which the tensor starts in it."""
    storage = tensor.untyped_storage()
    data = None
    if tensor.device.type == "cpu" and not isinstance(tensor, torch._subclasses.FakeTensor):
        data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return Memory(name, storage.nbytes(), data, storage._cdata), int(tensor.storage_offset()) * tensor.element_size()


class View:
    """A memref at run time: `base` bytes into `memory`, then `offset` elements (bits for i1), sizes and strides in elements."""

    __slots__ = ("_array", "_valid", "base", "dtype", "memory", "offset", "sizes", "strides")

    def __init__(self, memory: Memory, base: int, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        self.memory, self.base, self.offset = memory, base, offset
        self.sizes, self.strides, self.dtype = sizes, strides, dtype
        self._array: Array | None = None
        self._valid: Array | None = None

    @property
    def start(self) -> int:
        """The first byte."""
        return self.base + self.offset * BITS[self.dtype] // 8

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def span(self) -> tuple[int, int]:
        """The bytes from the first to one past the last element."""
        if not self.elements:
            return self.start, self.start
        last = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))
        return self.start, self.base + -(-(self.offset + last + 1) * BITS[self.dtype] // 8)

    def runs(self) -> tuple[int, int]:
        """How many contiguous runs the view is made of, and the bytes of each."""
        run, pieces = 1, 1
        contiguous = True
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size == 1:
                continue
            if contiguous and stride == run:
                run *= size
            else:
                contiguous = False
                pieces *= size
        return (0, 0) if not self.elements else (pieces, -(-run * BITS[self.dtype] // 8))

    def array(self) -> Array:
        """The elements as a NumPy array over the memory itself; for i1 the packed bytes (see `bits`)."""
        if self._array is None:
            self._array = self._over(self.memory.data, NUMPY[self.dtype] if self.dtype != "i1" else np.dtype(np.uint8))
        return self._array

    def valid(self) -> Array:
        """The bytes of `UB.valid` behind the elements, as unsigned integers of the element's width (all ones: written)."""
        if self._valid is None:
            assert isinstance(self.memory, UnifiedBuffer)
            self._valid = self._over(self.memory.valid, np.dtype(f"u{max(BITS[self.dtype] // 8, 1)}"))
        return self._valid

    def _over(self, data: Array | None, dtype: np.dtype[Any]) -> Array:
        if data is None:
            raise ValueError(f"{self.memory.name} has no data (a meta or fake tensor): its kernel can only be timed, use values=False")
        sizes, strides = self._packed() if self.dtype == "i1" else (self.sizes, self.strides)
        width = dtype.itemsize
        return np.ndarray(sizes, dtype, data, self.start, tuple(width * stride for stride in strides))

    def _packed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides in bytes of a view of bits: its runs, whose last byte may be shared, along the outer axes."""
        run = 1
        outer: list[tuple[int, int]] = []
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size == 1:
                continue
            if not outer and stride == run:
                run *= size
            else:
                outer.append((size, stride))
        if self.offset % 8 or any(stride % 8 for _, stride in outer):
            raise NotImplementedError(
                f"bits of {self.memory.name} within a byte, sizes {self.sizes}, strides {self.strides}, offset {self.offset}, "
                "are not covered by the emulator"
            )
        bytes_ = -(-run // 8) if self.elements else 0
        return (*(size for size, _ in reversed(outer)), bytes_), (*(stride // 8 for _, stride in reversed(outer)), 1)


def read_bits(view: View) -> Array:
    """The elements of a packed i1 view as bool."""
    packed = view.array()
    return np.unpackbits(packed, axis=-1, count=_run(view, packed), bitorder="little").view(np.bool_).reshape(view.sizes)


def write_bits(view: View, values: Array) -> None:
    """Pack bool values into an i1 view; bits of a run's last byte past the view keep their value."""
    target = view.array()
    run = _run(view, target)
    packed = np.packbits(values.reshape(*target.shape[:-1], run), axis=-1, bitorder="little")
    if run % 8:
        packed[..., -1] |= target[..., -1] & (0xFF << (run % 8) & 0xFF)
    target[...] = packed


def _run(view: View, packed: Array) -> int:
    """Bits of each run of a packed view."""
    return view.elements // max(math.prod(packed.shape[:-1]), 1)
