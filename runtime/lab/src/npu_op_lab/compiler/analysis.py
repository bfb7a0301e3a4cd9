"""What the compiled IR of a kernel says of its loops, buffers and transfers: static facts, nothing executed, nothing modelled."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import builtin
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from npu_op_runtime.soc import get_soc

from .ir import bits, constant, contiguous, device_functions, full_shape, name_of, parse, source_line, space
from .launch import CompiledKernel

_LOOPS = ("scf.for", "scf.while")
_VIEWS = ("memref.subview", "memref.collapse_shape", "memref.expand_shape", "memref.cast", "memref.reinterpret_cast")
# Operations that move data between GM and a core's own memory.
_TRANSFERS = ("hivm.hir.load", "hivm.hir.store", "hivm.hir.nd2nz", "hivm.hir.fixpipe", "hivm.hir.copy")

# The only words of the IR in which SoCs of one generation differ when their tiles are the same.
_CORES = re.compile(r'("\w+_CORE_COUNT",) \d+')


@dataclass(frozen=True)
class Transfer:
    """One DMA of a loop's trip.

    Attributes:
        line: source line, "kernel.py:12".
        direction: "in" (GM to the core) or "out".
        bytes: moved by a whole tile (masked tails move less).
        piece_bytes: bytes that are contiguous on both sides, one burst of the DMA.
        buffers: on-chip buffers that take turns from trip to trip: 2 or more is double buffering, 1 waits for the previous trip.
    """

    line: str
    direction: str
    bytes: int
    piece_bytes: int
    buffers: int


@dataclass(frozen=True)
class LoopReport:
    """One loop; every count is per trip, without the loops nested in it and without branches marked unlikely (tails).

    Attributes:
        line: source line of the loop.
        depth: number of loops around it.
        trips: trip count where it is a constant of the IR, else None.
        hot: innermost loop that loads from GM: where the kernel's time goes.
        scalar: works element by element on the scalar unit: scalar accesses or one-element DMAs, and no vector operation.
        transfers: its DMAs.
        vector_ops: vector operations by kind.
        scalar_loads, scalar_stores: memref.load and memref.store, of UB or GM.
        scalar_syncs: waits of another pipe on the scalar unit or of the scalar unit on another pipe (PIPE_S flags).
        full_barriers: barriers of all pipes.
    """

    line: str
    depth: int
    trips: int | None
    hot: bool
    scalar: bool
    transfers: tuple[Transfer, ...]
    vector_ops: Mapping[str, int]
    scalar_loads: int
    scalar_stores: int
    scalar_syncs: int
    full_barriers: int

    @property
    def bytes_in(self) -> int:
        """GM bytes read per trip."""
        return sum(transfer.bytes for transfer in self.transfers if transfer.direction == "in")

    @property
    def bytes_out(self) -> int:
        """GM bytes written per trip."""
        return sum(transfer.bytes for transfer in self.transfers if transfer.direction == "out")

    @property
    def double_buffered(self) -> bool:
        """Whether every load of the loop has two or more buffers taking turns."""
        return all(transfer.buffers >= 2 for transfer in self.transfers if transfer.direction == "in")


@dataclass(frozen=True)
class KernelReport:
    """One kernel compiled for one SoC.

    Attributes:
        kernel, soc, key: as in CompiledKernel.
        ub_bytes: UB high-water of the compiler's memory plan.
        ub_share: of the SoC's UB.
        loops: outermost first, in the order of the IR.
        half_scalars: types of the run-time scalar arguments that are fp16 or bf16, which an NPU reads wrong (anything but fp32).
        retries: what the compiler gave up after a UB overflow, in its own words.
        seconds: wall time of the vendor's compiler, measured when the kernel was compiled.
    """

    kernel: str
    soc: str
    key: str
    ub_bytes: int
    ub_share: float
    loops: tuple[LoopReport, ...]
    half_scalars: tuple[str, ...]
    retries: tuple[str, ...]
    seconds: float

    @property
    def hot_loops(self) -> tuple[LoopReport, ...]:
        return tuple(loop for loop in self.loops if loop.hot)

    @property
    def scalar_loops(self) -> tuple[LoopReport, ...]:
        return tuple(loop for loop in self.loops if loop.scalar)

    @property
    def double_buffered(self) -> bool:
        """Whether every load of every hot loop is double-buffered."""
        return all(loop.double_buffered for loop in self.hot_loops)


def report(kernel: CompiledKernel) -> KernelReport:
    """The static report of a compiled kernel.

    Raises:
        NotImplementedError: the IR holds a buffer or a size that the report cannot follow; the message names operation and line.
    """
    ub_bytes, loops, half_scalars = _read(_CORES.sub(r"\1 0", kernel.ir))
    return KernelReport(
        kernel=kernel.name,
        soc=kernel.soc,
        key=kernel.key,
        ub_bytes=ub_bytes,
        ub_share=ub_bytes / get_soc(kernel.soc).ub_bytes,
        loops=loops,
        half_scalars=half_scalars,
        retries=kernel.notes,
        seconds=kernel.seconds,
    )


@functools.lru_cache(maxsize=64)
def _read(ir: str) -> tuple[int, tuple[LoopReport, ...], tuple[str, ...]]:
    """UB bytes, loops and half scalars; parsing takes longer than compiling, and SoCs of one generation mostly share the code."""
    functions = device_functions(parse(ir))
    loops = (_loop_report(op) for function in functions for op in function.walk() if name_of(op) in _LOOPS)
    arguments = (argument.type for function in functions for argument in function.regions[0].blocks[0].args)
    half = tuple(str(kind) for kind in arguments if isinstance(kind, (builtin.Float16Type, builtin.BFloat16Type)))
    return max(map(_ub_bytes, functions)), tuple(loops), half


def _ub_bytes(function: Operation) -> int:
    """The end of the last UB buffer: addresses are the compiler's own plan."""
    ends = [0]
    for op in function.walk():
        if name_of(op) == "hivm.hir.pointer_cast" and space(op.results[0]) == "ub":
            shape = full_shape(op.results[0])
            if shape is None:
                raise NotImplementedError(f"{name_of(op)} at {_line(op)}: a UB buffer of run-time size")
            ends += [address + (math.prod(shape) * bits(op.results[0]) + 7) // 8 for address in _addresses(op)]
    return max(ends)


def _loop_report(loop: Operation) -> LoopReport:
    trip = list(_trip(loop))
    names = Counter(map(name_of, trip))
    vector_ops = {kind.removeprefix("hivm.hir."): count for kind, count in sorted(names.items()) if kind.startswith("hivm.hir.v")}
    moves = [op for op in trip if _direction(op)]
    flags = [f"{op.properties['set_pipe']}{op.properties['wait_pipe']}" for op in trip if name_of(op) == "hivm.hir.wait_flag"]
    barriers = [str(op.properties["pipe"]) for op in trip if name_of(op) == "hivm.hir.pipe_barrier"]
    scalars = names["memref.load"] + names["memref.store"]
    return LoopReport(
        line=_line(loop),
        depth=sum(name_of(outer) in _LOOPS for outer in _ancestors(loop)),
        trips=_trips(loop),
        hot=_streams(loop) and not any(_streams(op) for op in loop.walk() if op is not loop and name_of(op) in _LOOPS),
        scalar=bool(scalars or moves) and not vector_ops and all(_elements(op) == 1 for op in moves),
        transfers=tuple(_transfer(op, loop) for op in moves),
        vector_ops=vector_ops,
        scalar_loads=names["memref.load"],
        scalar_stores=names["memref.store"],
        scalar_syncs=sum("PIPE_S>" in pipes for pipes in flags),
        full_barriers=sum("PIPE_ALL" in pipe for pipe in barriers),
    )


def _trip(loop: Operation) -> Iterator[Operation]:
    """The operations of one trip: not those of nested loops, nor of branches that the compiler marks unlikely."""
    for region in loop.regions:
        for block in region.blocks:
            for op in block.ops:
                yield op
                if name_of(op) not in _LOOPS and "hivm.unlikely_condition" not in op.attributes:
                    yield from _trip(op)


def _ancestors(op: Operation) -> Iterator[Operation]:
    outer = op.parent_op()
    while outer is not None:
        yield outer
        outer = outer.parent_op()


def _streams(loop: Operation) -> bool:
    return any(_direction(op) == "in" for op in _trip(loop))


def _trips(loop: Operation) -> int | None:
    if name_of(loop) != "scf.for":
        return None
    low, high, step = map(constant, loop.operands[:3])
    return None if low is None or high is None or step is None else max(0, -(-(high - low) // step))


def _direction(op: Operation) -> str:
    if name_of(op) not in _TRANSFERS:
        return ""
    from_gm, to_gm = (space(value) == "gm" for value in op.operands[:2])
    return "" if from_gm == to_gm else "in" if from_gm else "out"


def _transfer(op: Operation, loop: Operation) -> Transfer:
    direction = _direction(op)
    source, target = op.operands[:2]
    source_shape, target_shape = _shapes(op)
    item = bits(source)
    on_chip = target if direction == "in" else source
    return Transfer(
        line=_line(op),
        direction=direction,
        bytes=_elements(op) * item // 8,
        piece_bytes=min(contiguous(source, source_shape), contiguous(target, target_shape)) * item // 8,
        buffers=len(_buffers(on_chip, _reusing(on_chip, loop))),
    )


def _reusing(value: SSAValue, loop: Operation) -> Operation:
    """The loop whose next trip moves into the same bytes: one around `loop` where each trip has a slice of its own (a gathered row)."""
    view = value.owner
    while isinstance(view, Operation) and name_of(view) in _VIEWS:
        if name_of(view) == "memref.subview" and any(_varies(offset, loop) for offset in _offsets(view)):
            return next((outer for outer in _ancestors(loop) if name_of(outer) in _LOOPS), loop)
        view = view.operands[0].owner
    return loop


def _offsets(subview: Operation) -> Sequence[SSAValue]:
    """Those that are not constants."""
    segments = subview.properties["operandSegmentSizes"]
    assert isinstance(segments, builtin.DenseArrayBase)
    source, offsets = map(int, segments.get_values()[:2])
    return subview.operands[source : source + offsets]


def _elements(op: Operation) -> int:
    return min(map(math.prod, _shapes(op)))


def _shapes(op: Operation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    source, target = map(full_shape, op.operands[:2])
    if source is not None:
        return source, source if target is None else target
    if target is not None:
        return target, target
    raise NotImplementedError(f"{name_of(op)} at {_line(op)}: neither side has a bounded size")


def _buffers(value: SSAValue, loop: Operation, seen: frozenset[SSAValue] = frozenset()) -> set[int]:
    """Addresses of the on-chip buffers that take turns as `value` from trip to trip of `loop`."""
    if value in seen:
        return set()
    seen |= {value}
    if isinstance(value, BlockArgument):
        # Argument 0 of a for is the induction variable; a buffer carried by another loop is one buffer to this one.
        owner = value.owner.parent_op()
        first = _buffers(_carried(owner, value.index - 1), loop, seen)
        return first | _buffers(_last(value.owner).operands[value.index - 1], loop, seen) if owner is loop else first
    op = value.owner
    assert isinstance(op, Operation) and isinstance(value, OpResult)
    kind = name_of(op)
    if kind in _VIEWS:
        return _buffers(op.operands[0], loop, seen)
    if kind == "hivm.hir.pointer_cast":
        return set(_addresses(op))
    if kind == "scf.for":
        return _buffers(_carried(op, value.index), loop, seen)
    if kind in ("arith.select", "scf.if"):
        choices = op.operands[1:] if kind == "arith.select" else [_last(region.block).operands[value.index] for region in op.regions]
        first, second = (_buffers(choice, loop, seen) for choice in choices)
        return first | second if _varies(op.operands[0], loop) else first
    raise NotImplementedError(f"{kind} at {_line(op)}: not known as the source of a buffer")


def _carried(loop: Operation | None, index: int) -> SSAValue:
    """What a loop starts carrying from trip to trip at `index`."""
    if loop is None or name_of(loop) != "scf.for":
        raise NotImplementedError(f"a buffer that {name_of(loop) if loop else 'a block'} carries: not known as the source of a buffer")
    return loop.operands[3 + index]  # after the bounds and the step


def _last(block: Block) -> Operation:
    assert block.last_op is not None
    return block.last_op


def _varies(value: SSAValue, loop: Operation) -> bool:
    """Whether `value` changes from trip to trip of `loop`."""
    op = value.owner
    if isinstance(op, Block):
        return op.parent_op() is loop
    return loop in _ancestors(op) and any(_varies(operand, loop) for operand in op.operands)


def _addresses(op: Operation) -> list[int]:
    addresses = [constant(operand) for operand in op.operands]
    if None in addresses:
        raise NotImplementedError(f"{name_of(op)} at {_line(op)}: its address is not a constant")
    return [address for address in addresses if address is not None]


def _line(op: Operation) -> str:
    return str(source_line(op) or "?")
