"""The memref operations that only make another view of the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .memory import UB, View

_DYNAMIC = -(2**63)


def pointer_cast(address: int, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> View:
    """A planned UB buffer."""
    return View(UB, address, 0, sizes, strides, dtype)


def fill(static: Sequence[int], dynamic: Sequence[int]) -> list[int]:
    """Static entries with the dynamic ones put where MLIR's marker stands."""
    rest = iter(dynamic)
    return [next(rest) if entry == _DYNAMIC else entry for entry in static]


def reinterpret_cast(source: View, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """Same base pointer, new offset, sizes and strides (the source's own offset does not count)."""
    return View(source.memory, source.base, offset, sizes, strides, source.dtype)


def bitcast(source: View, dtype: str) -> View:
    """The same bytes as numbers of another type of the same width."""
    return View(source.memory, source.base, source.offset, source.sizes, source.strides, dtype)


def subview(source: View, offsets: Sequence[int], sizes: Sequence[int], steps: Sequence[int], kept: tuple[int, ...] | None = None) -> View:
    """A strided box of the source; `kept` lists the axes that a rank-reducing subview keeps."""
    offset = source.offset
    strides = []
    for at, stride, step in zip(offsets, source.strides, steps, strict=True):
        offset += at * stride
        strides.append(stride * step)
    if kept is not None:
        sizes, strides = [sizes[axis] for axis in kept], [strides[axis] for axis in kept]
    return View(source.memory, source.base, offset, tuple(sizes), tuple(strides), source.dtype)


def collapse_shape(source: View, groups: Sequence[Sequence[int]]) -> View:
    """Each group of axes as one axis.

    Raises:
        ValueError: axes of a group that do not lie one inside the other in memory.
    """
    sizes, strides = [], []
    for group in groups:
        size, stride = 1, 1
        for axis in reversed(group):
            if source.sizes[axis] == 1:
                continue
            if size == 1:
                stride = source.strides[axis]
            elif source.strides[axis] != size * stride:
                raise ValueError(f"memref.collapse_shape of sizes {source.sizes}, strides {source.strides} is not one run of memory")
            size *= source.sizes[axis]
        # An axis of size 1 keeps its innermost stride: nothing moves along it.
        sizes.append(size)
        strides.append(stride if size != 1 else source.strides[group[-1]])
    return View(source.memory, source.base, source.offset, tuple(sizes), tuple(strides), source.dtype)


def expand_shape(source: View, groups: Sequence[Sequence[int]], sizes: tuple[int, ...]) -> View:
    """Each axis as a group of axes with the given sizes."""
    strides = [0] * len(sizes)
    for stride, group in zip(source.strides, groups, strict=True):
        for axis in reversed(group):
            strides[axis] = stride
            stride *= sizes[axis]
    return View(source.memory, source.base, source.offset, sizes, tuple(strides), source.dtype)


def strided_metadata(source: View) -> tuple[Any, ...]:
    """The base as a view of one element, then offset, sizes and strides."""
    base = View(source.memory, source.base, 0, (), (), source.dtype)
    return (base, source.offset, *source.sizes, *source.strides)
