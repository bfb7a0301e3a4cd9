"""Translates a `Program` into one Python function: scalar code and control flow run natively, everything else is an event.

An event is a vector instruction, a transfer, a flag, a barrier or a scalar memory access. The function calls one bound
callable per event; what that does (compute values, record for the time line, check) is the machine's choice.
On the way constants are folded, common subexpressions shared and loop-invariant scalar code hoisted, as the compiler
behind this IR does; the scalar operations that remain are counted and charged to the next event.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import views
from .dtypes import FLOATS
from .front import read_program
from .memory import View
from .program import Block, Op, Program, Value, ValueType
from .scalars import EXPRESSIONS, HELPERS, Unknown, _wrap, origin

_DMA = ("hivm.hir.load", "hivm.hir.store")
_SYNC = ("hivm.hir.set_flag", "hivm.hir.wait_flag", "hivm.hir.pipe_barrier")
_SCALAR_ACCESS = ("memref.load", "memref.store")
# Of HIVM, what only makes a view.
_VIEWS = ("hivm.hir.pointer_cast", "hivm.hir.bitcast")
_NOTHING = ("hivm.hir.set_mask_norm",)


@dataclass
class Event:
    """One place in the program that the machine acts on.

    Attributes:
        op: the operation, or None for scalar work at the end of a block.
        scalar_ops: scalar operations executed since the event before it in the same block.
        shared: a transfer whose address is the same for every program (a weight): one core's read fills L2 for the others.
        constants: the operands that are the same in every execution, by position.
    """

    op: Op | None
    scalar_ops: int
    shared: bool = False
    constants: dict[int, Any] = field(default_factory=dict)


@dataclass
class Translated:
    """A kernel ready to run: `function(bound, trips, pid, *arguments)` with `bound[i]` the callable of `events[i]`.

    `trips(lower, upper, step, carried)` iterates over a loop's induction values; `carried` tells that values go from trip to trip.
    """

    name: str
    function: Callable[..., None]
    events: list[Event]
    source: str
    argument_types: list[ValueType]

    @property
    def arguments(self) -> int:
        """Arguments of the device function, the six that every kernel has included."""
        return len(self.argument_types) + 6


@functools.lru_cache(maxsize=512)
def translate(ir: str) -> Translated:
    """Translate IR text, once per text.

    Raises:
        NotImplementedError: an operation that the emulator does not cover, by name and source line.
    """
    return _Translator(read_program(ir)).result()


class _Scope:
    def __init__(self, loop: bool) -> None:
        self.loop = loop
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        self.pending = 0


class _Translator:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._events: list[Event] = []
        self._constants: list[Any] = []
        self._names: dict[Value, str] = {}
        self._level: dict[str, int] = {}
        self._tainted: set[Value] = set()
        self._scopes: list[_Scope] = []

    def result(self) -> Translated:
        args = self._program.block.args
        for value in args:
            self._bind(value, f"a{value.index}")
        body = self._block(self._program.block, loop=False)
        header = [f"o{index} = bound[{index}]" for index in range(len(self._events))]
        text = "\n".join(
            [
                f"def kernel(bound, trips, pid, {', '.join(self._names[value] for value in args)}):",
                *(f"    {line}" for line in header + body),
            ]
        )
        space = {**HELPERS, **{f"k{index}": value for index, value in enumerate(self._constants)}, "views": views}
        exec(compile(text, f"<{self._program.name}>", "exec"), space)
        return Translated(self._program.name, space["kernel"], self._events, text, [value.type for value in args[3:-3]])

    # Blocks and control flow.

    def _block(self, block: Block, loop: bool, results: list[Value] | None = None) -> list[str]:
        self._scopes.append(_Scope(loop))
        for op in block.ops:
            if op.name == "scf.yield":
                self._assign(results or [], op.operands)
            elif op.name != "func.return":
                self._op(op)
        self._flush()
        lines = self._scopes.pop().lines
        return lines or ["pass"]

    def _op(self, op: Op) -> None:
        name = op.name
        if name == "arith.constant":
            self._set_constant(op.results[0], _constant(op))
        elif name in EXPRESSIONS or name.startswith("memref.") and name not in _SCALAR_ACCESS or name in _VIEWS:
            self._pure(op)
        elif name == "hivm.hir.get_block_idx":
            self._bind(op.results[0], "pid", level=0)
            self._tainted.add(op.results[0])
        elif name == "scf.for":
            self._for(op)
        elif name == "scf.if":
            self._if(op)
        elif name == "scf.while":
            self._while(op)
        elif name in _DMA or name in _SYNC or name in _SCALAR_ACCESS or name.startswith("hivm.hir.v") or name == "hivm.hir.copy":
            self._event(op)
        elif name not in _NOTHING:
            raise self._uncovered(op)

    def _for(self, op: Op) -> None:
        lower, upper, step, *initial = op.operands
        induction, *carried = op.blocks[0].args
        self._open(induction)
        for value in carried:
            self._open(value)
        for value in op.results:
            self._open(value, outer=True)
        if self._any_tainted(op.operands):
            self._tainted.update([induction, *carried, *op.results])
        # A carried value may change from trip to trip by something that a taint reaches.
        elif carried:
            self._tainted.update(carried, op.results)
        names = [self._names[value] for value in carried]
        body = self._block(op.blocks[0], loop=True, results=carried)
        self._flush()
        scope = self._scopes[-1]
        self._assign(carried, initial)
        bounds = ", ".join(self._text(value) for value in (lower, upper, step))
        scope.lines.append(f"for {self._names[induction]} in trips({bounds}, {bool(carried)}):")
        scope.lines += [f"    {line}" for line in body]
        for result, name in zip(op.results, names, strict=True):
            scope.lines.append(f"{self._names[result]} = {name}")

    def _if(self, op: Op) -> None:
        for value in op.results:
            self._open(value, outer=True)
            self._tainted.add(value)
        blocks = [self._block(block, loop=False, results=op.results) for block in op.blocks]
        self._flush()
        lines = self._scopes[-1].lines
        lines.append(f"if {self._text(op.operands[0])}:")
        lines += [f"    {line}" for line in blocks[0]]
        if len(blocks) > 1 and blocks[1] != ["pass"]:
            lines += ["else:", *(f"    {line}" for line in blocks[1])]

    def _while(self, op: Op) -> None:
        before, after = op.blocks
        for value in [*before.args, *after.args]:
            self._open(value)
        for value in op.results:
            self._open(value, outer=True)
        self._tainted.update([*before.args, *after.args, *op.results])
        self._scopes.append(_Scope(loop=True))
        for inner in before.ops[:-1]:
            self._op(inner)
        condition, *passed = before.ops[-1].operands
        self._flush()
        self._assign(op.results, passed)
        self._scopes[-1].lines.append(f"if not decided({self._text(condition)}, {origin(op)}): break")
        self._assign(after.args, passed)
        head = self._scopes.pop().lines
        body = self._block(after, loop=True, results=before.args)
        self._flush()
        self._assign(before.args, op.operands)
        self._scopes[-1].lines += ["while True:", *(f"    {line}" for line in head + body)]

    # Events.

    def _event(self, op: Op) -> None:
        scope = self._scopes[-1]
        shared = op.name in _DMA and not self._any_tainted(op.operands)
        constants = {at: value.constant for at, value in enumerate(op.operands) if value.constant is not None}
        index = len(self._events)
        self._events.append(Event(op, scope.pending, shared, constants))
        scope.pending = 0
        call = f"o{index}({', '.join(self._text(value) for value in op.operands)})"
        if op.results:
            self._open(op.results[0])
            self._tainted.add(op.results[0])
            call = f"{self._names[op.results[0]]} = {call}"
        scope.lines.append(call)

    def _flush(self) -> None:
        """Charge scalar work that no event follows in this block."""
        scope = self._scopes[-1]
        if scope.pending:
            scope.lines.append(f"o{len(self._events)}()")
            self._events.append(Event(None, scope.pending))
            scope.pending = 0

    # Pure operations.

    def _pure(self, op: Op) -> None:
        expression = self._expression(op)
        if all(value.constant is not None for value in op.operands):
            space = {**HELPERS, **{f"k{index}": value for index, value in enumerate(self._constants)}, "views": views}
            with np.errstate(all="ignore"):
                folded = eval(expression, space)
            for result, value in zip(op.results, folded if len(op.results) > 1 else [folded], strict=True):
                self._set_constant(result, value)
            return
        if self._any_tainted(op.operands):
            self._tainted.update(op.results)
        if expression.strip("()").isidentifier():  # a conversion that changes nothing
            self._names[op.results[0]] = expression.strip("()")
            return
        scope = self._target(max(self._level.get(self._text(value), 0) for value in op.operands))
        key = expression.replace(origin(op), "")  # the same division on another line is the same number
        for outer in self._scopes:
            if key in outer.known:
                names = outer.known[key].split(", ")
                for result, name in zip(op.results, names, strict=True):
                    self._names[result] = name
                return
        for result in op.results:
            self._bind(result, f"v{result.index}", level=self._scopes.index(scope))
        names_text = ", ".join(self._names[result] for result in op.results)
        scope.lines.append(f"{names_text} = {expression}")
        scope.known[key] = names_text
        scope.pending += 1

    def _target(self, level: int) -> _Scope:
        """The scope that a pure operation is placed in: outside every loop that none of its operands needs."""
        for at in range(level + 1, len(self._scopes)):
            if self._scopes[at].loop:
                return self._scopes[at - 1]
        return self._scopes[-1]

    def _expression(self, op: Op) -> str:
        args = [self._text(value) for value in op.operands]
        if op.name in EXPRESSIONS:
            return EXPRESSIONS[op.name](op, args)
        match op.name:
            case "hivm.hir.pointer_cast":
                kind = op.results[0].memref
                if len(args) != 1 or None in kind.shape:
                    raise self._uncovered(op, "with several addresses or a run-time shape ")
                return f"views.pointer_cast({args[0]}, {kind.shape}, {kind.strides}, {kind.dtype!r})"
            case "memref.reinterpret_cast":
                source, offsets, sizes, strides = self._mixed(op)
                return f"views.reinterpret_cast({source}, {offsets[0]}, {_tuple(sizes)}, {_tuple(strides)})"
            case "memref.subview":
                source, offsets, sizes, strides = self._mixed(op)
                kept = _kept_axes(op)
                return f"views.subview({source}, {_tuple(offsets)}, {_tuple(sizes)}, {_tuple(strides)}, {kept})"
            case "memref.collapse_shape":
                return f"views.collapse_shape({args[0]}, {op.attrs['reassociation']})"
            case "memref.expand_shape":
                sizes = [str(size) for size in views.fill(op.attrs["static_output_shape"], args[1:])]  # type: ignore[arg-type]
                return f"views.expand_shape({args[0]}, {op.attrs['reassociation']}, {_tuple(sizes)})"
            case "memref.extract_strided_metadata":
                return f"views.strided_metadata({args[0]})"
            case "memref.cast" | "memref.memory_space_cast":
                return args[0]
            case "hivm.hir.bitcast":
                return f"views.bitcast({args[0]}, {op.results[0].memref.dtype!r})"
            case "memref.dim":
                return f"{args[0]}.sizes[{args[1]}]"
        raise self._uncovered(op)

    def _mixed(self, op: Op) -> tuple[str, list[str], list[str], list[str]]:
        """Source, offsets, sizes and strides of a view operation, static entries as numbers, dynamic ones as names."""
        (source,), *dynamic = op.segments()
        parts = []
        for key, values in zip(("static_offsets", "static_sizes", "static_strides"), dynamic, strict=True):
            parts.append([str(entry) for entry in views.fill(op.attrs[key], [self._text(value) for value in values])])  # type: ignore[misc]
        return self._text(source), parts[0], parts[1], parts[2]

    def _uncovered(self, op: Op, what: str = "") -> NotImplementedError:
        where = op.where or "an unknown line"
        return NotImplementedError(f"{self._program.name}: operation {op.name} {what}at {where} is not covered by the emulator")

    # Names.

    def _bind(self, value: Value, name: str, level: int = 0) -> None:
        self._names[value] = name
        self._level[name] = level

    def _open(self, value: Value, outer: bool = False) -> None:
        """Name a value that is assigned in the block being translated (`outer`) or in the one about to be opened."""
        self._bind(value, f"v{value.index}", level=len(self._scopes) - 1 if outer else len(self._scopes))

    def _set_constant(self, value: Value, constant: Any) -> None:
        value.constant = constant
        if isinstance(constant, View | Unknown) or constant is None or isinstance(constant, float):
            self._names[value] = f"k{len(self._constants)}"
            self._constants.append(constant)
        else:
            self._names[value] = str(constant) if constant >= 0 else f"({constant})"

    def _text(self, value: Value) -> str:
        return self._names[value]

    def _assign(self, targets: list[Value], sources: list[Value]) -> None:
        if targets:
            left = ", ".join(self._names[value] for value in targets)
            self._scopes[-1].lines.append(f"{left} = {', '.join(self._text(value) for value in sources)}")

    def _any_tainted(self, values: list[Value]) -> bool:
        return any(value in self._tainted for value in values)


def _tuple(parts: list[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"


def _constant(op: Op) -> Any:
    value, type_ = op.attrs["value"], op.results[0].type
    if type_ in FLOATS:
        return HELPERS[f"round_{type_}"](value)
    return eval(_wrap(str(value), type_))


def _kept_axes(op: Op) -> tuple[int, ...] | None:
    """The source axes that the result of a rank-reducing subview keeps, found by size and stride; None when all are kept."""
    source, result = op.operands[0].memref, op.results[0].memref
    if len(source.shape) == len(result.shape):
        return None
    sizes = [None if size == views._DYNAMIC else size for size in op.attrs["static_sizes"]]
    steps = op.attrs["static_strides"]
    strides = [None if stride is None else stride * step for stride, step in zip(source.strides, steps, strict=True)]
    kept: list[int] = []
    for size, stride in zip(result.shape, result.strides, strict=True):
        at = kept[-1] + 1 if kept else 0
        while sizes[at] != size or (None not in (stride, strides[at]) and strides[at] != stride):
            at += 1
        kept.append(at)
    return tuple(kept)
