"""HIVM IR as xdsl objects: parsing, source lines, memory types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import triton
from xdsl.context import Context
from xdsl.dialects import builtin
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser

_TRITON = str(Path(triton.__file__).parent)


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of the Python source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def parse(ir: str) -> builtin.ModuleOp:
    """The module of a kernel's `ir`; operations of dialects that xdsl does not know stay unregistered, with their location."""
    context = Context(allow_unregistered=True)
    context.load_dialect(builtin.Builtin)
    return Parser(context, ir).parse_module()


def name_of(op: Operation) -> str:
    """An operation's name, `hivm.hir.load`, registered with xdsl or not."""
    return op.op_name.data if isinstance(op, builtin.UnregisteredOp) and op.op_name is not None else op.name


def device_functions(module: builtin.ModuleOp) -> list[Operation]:
    """The functions that run on the cores: one for a vector kernel, one for the cube and one for the vector cores of a mixed one."""
    functions = (op for op in module.body.block.ops if name_of(op) == "func.func")
    return [op for op in functions if str(op.attributes.get("hacc.function_kind")).endswith("<DEVICE>")]


def source_line(op: Operation) -> SourceLine | None:
    """The innermost line outside Triton's own library that `op` came from; None where the compiler kept none."""
    return _user_line(op.location)


def _user_line(location: Attribute | None) -> SourceLine | None:
    if isinstance(location, builtin.FileLineColLoc):
        file = location.filename.data
        # The front end's own intermediate file and Triton's standard library are nobody's kernel.
        return None if file.startswith(_TRITON) or not file.endswith(".py") else SourceLine(file, location.line.data)
    if isinstance(location, builtin.CallSiteLoc):
        return _user_line(location.callee) or _user_line(location.caller)
    if isinstance(location, builtin.FusedLoc) and isinstance(location.locations, builtin.ArrayAttr):
        return next((line for line in map(_user_line, location.locations) if line is not None), None)
    return None


def constant(value: SSAValue) -> int | None:
    """The integer of an arith.constant, else None."""
    op = value.owner
    if isinstance(op, Operation) and name_of(op) == "arith.constant" and isinstance(op.properties["value"], builtin.IntegerAttr):
        return op.properties["value"].value.data
    return None


def space(value: SSAValue) -> str:
    """The address space of a memref value, "gm", "ub", "cbuf", ...; "" for anything else."""
    if not isinstance(value.type, builtin.MemRefType):
        return ""
    return str(value.type.memory_space).rpartition("<")[2].rstrip(">")


def bits(value: SSAValue) -> int:
    """Bits of one element of a memref value."""
    element = _memref(value).element_type
    assert isinstance(element, builtin.FixedBitwidthType)
    return element.bitwidth


def full_shape(value: SSAValue) -> tuple[int, ...] | None:
    """A memref value's shape with every run-time size (a mask's cut) replaced by its bound, that of a whole tile; None if unbounded."""
    shape = _memref(value).get_shape()
    if builtin.DYNAMIC_INDEX not in shape:
        return shape
    op = value.owner
    if not isinstance(op, Operation):
        return None
    kind = name_of(op)
    if kind == "arith.select":
        return full_shape(op.operands[1])
    if kind not in ("memref.subview", "memref.collapse_shape", "memref.expand_shape", "memref.cast"):
        return None
    source = full_shape(op.operands[0])
    if source is None:
        return None
    if kind == "memref.subview":
        sizes = [bound if size == builtin.DYNAMIC_INDEX else size for size, bound in zip(_ints(op, "static_sizes"), source, strict=True)]
        while len(sizes) > len(shape):  # a rank-reducing subview drops axes of size 1
            sizes.remove(1)
        return tuple(sizes)
    if kind == "memref.cast":
        return source
    groups = _groups(op)
    if kind == "memref.collapse_shape":
        return tuple(math.prod(source[axis] for axis in group) for group in groups)
    expanded = list(shape)
    for whole, group in zip(source, groups, strict=True):
        for axis in group:
            if expanded[axis] == builtin.DYNAMIC_INDEX:
                expanded[axis] = whole // math.prod(expanded[other] for other in group if expanded[other] != builtin.DYNAMIC_INDEX)
    return tuple(expanded)


def contiguous(value: SSAValue, shape: tuple[int, ...]) -> int:
    """How many elements of a whole tile of `shape` follow one another in memory, by the memref's strides."""
    strides = _memref(value).get_strides()
    if isinstance(_memref(value).layout, builtin.NoneAttr) or strides is None:
        return math.prod(shape)
    run = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != run:
                break
            run *= size
    return run


def _memref(value: SSAValue) -> builtin.MemRefType[Attribute]:
    assert isinstance(value.type, builtin.MemRefType)
    return value.type


def _ints(op: Operation, name: str) -> tuple[int, ...]:
    attribute = op.properties[name]
    assert isinstance(attribute, builtin.DenseArrayBase)
    return tuple(int(number) for number in attribute.get_values())


def _groups(op: Operation) -> list[list[int]]:
    """The axes of the expanded side that each axis of the collapsed side stands for."""
    attribute = op.properties["reassociation"]
    assert isinstance(attribute, builtin.ArrayAttr)
    return [[index.value.data for index in group] for group in attribute]
