"""The emulator's own form of a compiled kernel: plain operations and values, free of parser objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Dim = int | None  # None: known only at run time


@dataclass(frozen=True)
class MemRefType:
    """A memref: element type by name ("bf16", "i1"), shape, strides and offset in elements, memory space ("gm", "ub")."""

    dtype: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    space: str


ValueType = MemRefType | str  # a scalar is its type's name: "i32", "f32", "index"


class Value:
    """One SSA value."""

    __slots__ = ("constant", "index", "type")

    def __init__(self, index: int, type_: ValueType, constant: Any = None) -> None:
        self.index = index
        self.type = type_
        self.constant = constant

    @property
    def memref(self) -> MemRefType:
        if not isinstance(self.type, MemRefType):
            raise TypeError(f"value {self.index} is a scalar of type {self.type}, a memref was expected")
        return self.type


@dataclass
class Block:
    args: list[Value]
    ops: list[Op]


@dataclass
class Op:
    """One operation: `name` as in the IR, attributes as plain Python values, `where` the source line "file.py:12" or ""."""

    name: str
    operands: list[Value]
    results: list[Value]
    attrs: dict[str, Any]
    blocks: list[Block] = field(default_factory=list)
    where: str = ""

    def segments(self, name: str = "operandSegmentSizes") -> list[list[Value]]:
        """The operands grouped as `operandSegmentSizes` says."""
        groups, at = [], 0
        for size in self.attrs[name]:
            groups.append(self.operands[at : at + size])
            at += size
        return groups


@dataclass
class Program:
    """A kernel's device function.

    Attributes:
        name: the kernel's name.
        block: its body; the arguments are ffts address, lock, workspace, the launch arguments, then grid x, y, z.
        key: names the text that it was translated from.
    """

    name: str
    block: Block
    key: str


def walk(block: Block) -> Iterator[Op]:
    """Every operation of a block and of the regions inside it, in program order."""
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from walk(inner)
