"""Turns HIVM IR text (generic form, affine maps lowered) into a `Program`."""

from __future__ import annotations

import hashlib
from typing import Any

from xdsl.dialects import builtin
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir import Block as XBlock

from ..compiler import ir
from .program import Block, Dim, MemRefType, Op, Program, Value, ValueType


def read_program(text: str) -> Program:
    """Read the device function of one compiled kernel.

    Raises:
        NotImplementedError: a kernel with a part for the cube core (tl.dot), which the emulator does not cover.
        ValueError: no device function in the text.
    """
    functions = ir.device_functions(ir.parse(text))
    if not functions:
        raise ValueError("the IR must hold a device function (got none)")
    names = [_plain(function.properties["sym_name"]) for function in functions]
    cores = [_plain(function.attributes.get("hivm.func_core_type")) for function in functions]
    if cores != ["AIV"]:
        raise NotImplementedError(
            f"{', '.join(names)}: core type {', '.join(map(str, cores))} is not covered, only vector kernels (AIV) are"
        )
    block = _Reader().block(functions[0].regions[0].blocks[0])
    return Program(names[0], block, hashlib.sha256(text.encode()).hexdigest()[:16])


class _Reader:
    def __init__(self) -> None:
        self._values: dict[SSAValue, Value] = {}

    def block(self, block: XBlock) -> Block:
        args = [self._define(arg) for arg in block.args]
        return Block(args, [self._op(op) for op in block.ops])

    def _define(self, value: SSAValue) -> Value:
        made = Value(len(self._values), _type(value.type))
        self._values[value] = made
        return made

    def _op(self, op: Operation) -> Op:
        attrs = {key: _plain(attr) for key, attr in {**op.properties, **op.attributes}.items() if key != "op_name__"}
        operands = [self._values[operand] for operand in op.operands]
        blocks = [self.block(region.blocks[0]) for region in op.regions if region.blocks]
        results = [self._define(result) for result in op.results]
        line = ir.source_line(op)
        return Op(ir.name_of(op), operands, results, attrs, blocks, str(line) if line else "")


def _type(attr: Attribute) -> ValueType:
    if not isinstance(attr, builtin.MemRefType):
        return str(attr)
    shape = tuple(_dim(size.data) for size in attr.shape.data)
    layout = attr.layout
    strides: tuple[Dim, ...]
    if isinstance(layout, builtin.StridedLayoutAttr):
        strides = tuple(stride.data if isinstance(stride, builtin.IntAttr) else None for stride in layout.strides.data)
        offset = layout.offset.data if isinstance(layout.offset, builtin.IntAttr) else None
    elif isinstance(layout, builtin.NoneAttr):
        strides, offset = row_major(shape), 0
    else:
        raise NotImplementedError(f"memref layout {layout} is not covered by the emulator")
    return MemRefType(str(attr.element_type), shape, strides, offset, _plain(attr.memory_space))


def row_major(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides, in elements, of a dense array of that shape; None where an inner dimension is known only at run time."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = None if step is None or size is None else step * size
    return tuple(reversed(strides))


def _dim(size: int) -> Dim:
    return None if size == builtin.DYNAMIC_INDEX else size


def _plain(attr: Attribute | None) -> Any:
    """An attribute as a Python value: numbers, strings and lists; an enum such as `#hivm.pipe<PIPE_V>` is its word."""
    match attr:
        case None | builtin.NoneAttr():
            return None
        case builtin.UnitAttr():
            return True
        case builtin.IntegerAttr():
            return attr.value.data
        case builtin.FloatAttr():
            return attr.value.data
        case builtin.StringAttr():
            return attr.data
        case builtin.ArrayAttr():
            return [_plain(item) for item in attr.data]
        case builtin.DenseArrayBase():
            return list(attr.get_values())
        case builtin.UnregisteredAttr():
            return attr.value.data
        case _:
            return attr
