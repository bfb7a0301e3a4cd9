"""Runs a translated kernel, one program after another: computes values, finds faults, records what the time line needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from operator import index as as_index
from typing import Any

import numpy as np
import torch

from . import costs, vector
from .dtypes import BITS, FLOATS, NUMPY, Array
from .findings import Finding, OutOfBounds, UndefinedBehavior
from .memory import UB, Memory, View, tensor_memory
from .program import MemRefType, Op
from .scalars import UNKNOWN, Undefined, Unknown
from .trace import LAST, MEASURED, WARM, Kind, Pipe, Trace
from .translate import Event, Translated

_NO_BYTES = Memory("no memory", 0, np.empty(0, np.uint8))
_ATOMICS: dict[str, Callable[..., Any]] = {"add": np.add, "max": np.maximum, "min": np.minimum}


class GmAccess:
    """One program's access to GM: a view, whether it writes, whether atomically, and its event."""

    __slots__ = ("atomic", "event", "program", "view", "writes")

    def __init__(self, view: View, writes: bool, atomic: bool, event: int, program: int) -> None:
        self.view, self.writes, self.atomic, self.event, self.program = view, writes, atomic, event, program


class Machine:
    """One launch of a kernel.

    Args:
        kernel: the translated kernel.
        arguments: the launch arguments, tensors and numbers.
        grid: programs per axis.
        cores: vector cores, l2_bytes: L2 of the SoC, bytes.
        values: compute; otherwise only addresses, sizes and control flow are followed.
        checks: look for faults (only together with values).
        cached: storages (`_cdata`) that L2 holds before the launch.
        blank: storages that hold what nobody computed: a number that is read from one is unknown.

    Attributes:
        read, written: storages that transfers moved data from and to.
    """

    def __init__(
        self,
        kernel: Translated,
        arguments: list[Any],
        grid: tuple[int, int, int],
        cores: int,
        l2_bytes: int,
        *,
        values: bool,
        checks: bool,
        cached: Collection[int] = (),
        blank: Collection[int] = (),
    ) -> None:
        self.kernel = kernel
        self.findings: dict[tuple[str, str], Finding] = {}
        self.accesses: list[GmAccess] = []
        self._values, self._checks = values, checks and values
        self._active = min(cores, grid[0] * grid[1] * grid[2])
        self._l2_bytes = l2_bytes
        self._program = 0
        self._trace: Trace | None = None
        self._moved = 0.0
        self._seen: dict[tuple[int, int, int], tuple[float, bool]] = {}
        self._cached, self._blank = cached, blank
        self.read: set[int] = set()
        self.written: set[int] = set()
        self._args = [0, _no_view(), _no_view(), *self._arguments(arguments), *grid]
        if len(self._args) != kernel.arguments:
            raise ValueError(f"{kernel.name} takes {kernel.arguments - 6} launch arguments (got {len(arguments)})")
        self._bound = [self._bind(index, event) for index, event in enumerate(kernel.events)]

    def run(self, program: int, trace: Trace | None) -> None:
        """Run one program of the grid; record into `trace` if given.

        Raises:
            OutOfBounds: it leaves a tensor's storage.
        """
        self._program, self._trace = program, trace
        self._moved = 0.0
        self._seen.clear()
        if self._values:
            UB.poison()
        with np.errstate(all="ignore"):
            self.kernel.function(self._bound, self._trips, program, *self._args)

    def let_go(self) -> None:
        """Drop the tensors, also from what refers to this machine in a circle: a launch that is over holds no memory."""
        self._args.clear()
        self.accesses.clear()

    def _arguments(self, arguments: list[Any]) -> Iterator[Any]:
        memories: dict[int, Memory] = {}
        types = self.kernel.argument_types
        for position, (argument, type_) in enumerate(zip(arguments, types, strict=False)):
            if isinstance(argument, torch.Tensor):
                if not isinstance(type_, MemRefType):
                    raise ValueError(f"{self.kernel.name}: argument {position} must be a number (got a tensor)")
                memory, start = tensor_memory(argument, f"argument {position}")
                if memory.storage in self._blank:
                    memory.data = None
                # Two arguments in one storage must be one memory: races between them are races.
                memory = memories.setdefault(argument.untyped_storage()._cdata, memory)
                yield View(memory, start, 0, (1,), (1,), type_.dtype)
            elif type_ in FLOATS:
                yield float(NUMPY[str(type_)].type(argument))
            else:
                yield int(argument)

    # Loops.

    def _trips(self, lower: int, upper: int, step: int, carried: bool) -> Iterator[int]:
        trips = range(lower, upper, step)
        trace = self._trace
        # An even number is skipped, so that alternating buffers and flags keep their turn.
        skipped = (len(trips) - WARM - MEASURED - LAST) & ~1
        if trace is None or skipped <= 0:
            yield from trips
            return
        yield from trips[:WARM]
        trace.events.append((Kind.MARK, -1))
        yield from trips[WARM : WARM + MEASURED]
        trace.events.append((Kind.SKIP, -1, MEASURED, skipped))
        rest = WARM + MEASURED + skipped
        if self._values or carried:
            self._trace = None
            yield from trips[WARM + MEASURED : rest]
            self._trace = trace
        yield from trips[rest:]

    # Events.

    def _bind(self, index: int, event: Event) -> Callable[..., Any]:
        op = event.op
        if op is None:
            return self._bind_scalar(index, event)
        match op.name:
            case "hivm.hir.load" | "hivm.hir.store":
                return self._bind_transfer(index, event, op)
            case "hivm.hir.set_flag" | "hivm.hir.wait_flag" | "hivm.hir.pipe_barrier":
                return self._bind_sync(index, event, op)
            case "memref.load":
                return self._bind_scalar_load(index, event, op)
            case "memref.store":
                return self._bind_scalar_store(index, event, op)
        return self._bind_vector(index, event, op)

    def _bind_scalar(self, index: int, event: Event) -> Callable[..., Any]:
        record = (Kind.SCALAR, index, event.scalar_ops)

        def run() -> None:
            if self._trace is not None:
                self._trace.events.append(record)

        return run

    def _bind_vector(self, index: int, event: Event, op: Op) -> Callable[..., Any]:
        compute, layout, cycles = vector.compute(op), vector.operands(op), costs.vector_cycles(op)
        memrefs = [at for at, value in enumerate(op.operands) if isinstance(value.type, MemRefType)]
        reads = [at for at in layout.inputs if at in memrefs]
        numbers = [at for at in layout.inputs if at not in memrefs]
        values, checks = self._values, self._checks
        known: dict[tuple[Any, ...], int] = {}

        def run(*args: Any) -> None:
            for at in memrefs:
                _must_have_size(args[at], op)
            for at in numbers:
                _must_be_defined(args[at])
            if values:
                if checks:
                    for at in reads:
                        self._must_be_written(args[at], op)
                compute(args)
                for at in layout.outputs:
                    _mark_written(args[at])
            trace = self._trace
            if trace is not None:
                key = tuple((arg.sizes, arg.strides, arg.start % 512) for arg in args if isinstance(arg, View))
                if key not in known:
                    known[key] = cycles(args)
                if checks:
                    written = [*layout.outputs, *layout.scratch]
                    self._touch(trace, [args[at] for at in reads], [args[at] for at in written if isinstance(args[at], View)])
                trace.events.append((Kind.VECTOR, index, known[key]))

        return run

    def _bind_transfer(self, index: int, event: Event, op: Op) -> Callable[..., Any]:
        inward = op.name == "hivm.hir.load"
        pipe = Pipe.MTE2 if inward else Pipe.MTE3
        atomic = op.attrs.get("atomic_kind")
        if atomic is not None and atomic not in _ATOMICS:
            raise NotImplementedError(f"{op.name} with atomic_kind {atomic} at {op.where} is not covered by the emulator")
        move = self._load(op) if inward else self._store(op, _ATOMICS.get(atomic or ""))
        values, checks, shared = self._values, self._checks, event.shared

        def run(*args: Any) -> None:
            inside, outside = (args[1], args[0]) if inward else (args[0], args[1])
            _must_have_size(outside, op)
            if not outside.elements:
                return
            if values:
                self._must_be_inside(outside, op)
                if checks:
                    self.accesses.append(GmAccess(outside, not inward, atomic is not None, index, self._program))
                    if not inward:
                        self._must_be_written(inside, op)
                move(args)
            trace = self._trace
            if trace is not None:
                if checks:
                    self._touch(trace, [] if inward else [inside], [inside] if inward else [])
                trace.events.append((Kind.TRANSFER, index, pipe, *self._traffic(outside, shared, inward), outside.memory.storage))

        return run

    def _traffic(self, view: View, shared: bool, inward: bool) -> tuple[float, float, int, int]:
        """Bytes of HBM and of L2 that a transfer moves, its fixed cycles and its contiguous pieces.

        What this program touched before, and not more than L2 holds ago (all cores counted), is in L2, which writes it to HBM
        once if it was written at all; an address that is the same for all programs comes from HBM for one of them. One that hangs on
        data (a gathered row) is taken to begin a line that this program has not touched, when data are not followed.
        """
        figures = costs.table()
        gathered = isinstance(view.offset, Unknown)
        if gathered:
            view = View(view.memory, view.base, 0, view.sizes, view.strides, view.dtype)
        moved, pieces = costs.transfer_bytes(view)
        fixed = figures["dma_issue_in" if inward else "dma_issue_out"] + figures["dma_piece"] * (pieces - 1)
        key = (id(view.memory), -1, -1) if gathered else (id(view.memory), *view.span())
        last, dirty = self._seen.get(key, (0.0 if view.memory.storage in self._cached else -math.inf, False))
        (self.read if inward else self.written).add(view.memory.storage)
        self._moved += moved
        held = (self._moved - last) * self._active <= self._l2_bytes
        if not gathered:
            self._seen[key] = self._moved, not inward or (held and dirty)
        if held and (inward or dirty):
            return 0.0, float(moved), fixed, pieces
        hbm = moved / self._active if shared and inward else float(moved)
        return hbm, moved - hbm, fixed, pieces

    def _load(self, op: Op) -> Callable[[tuple[Any, ...]], None]:
        mode = op.attrs.get("pad_mode")
        if mode not in (None, "PadNull", "PadValue"):
            raise NotImplementedError(f"{op.name} with pad_mode {mode} at {op.where} is not covered by the emulator")
        pads = mode == "PadValue"

        def move(args: tuple[Any, ...]) -> None:
            source, target = args[0], args[1]
            _must_fit(source, target, op)
            target.array()[...] = source.array()
            _mark_written(target)
            if pads:
                if args[3]:
                    raise NotImplementedError(f"{op.name} with left padding at {op.where} is not covered by the emulator")
                _pad(target, args[2])

        return move

    def _store(self, op: Op, combine: Callable[..., Any] | None) -> Callable[[tuple[Any, ...]], None]:
        def move(args: tuple[Any, ...]) -> None:
            _must_fit(args[0], args[1], op)
            source, target = args[0].array(), args[1].array()
            target[...] = source if combine is None else combine(target, source)

        return move

    def _bind_sync(self, index: int, event: Event, op: Op) -> Callable[..., Any]:
        if op.name == "hivm.hir.pipe_barrier":
            pipe = op.attrs["pipe"].removeprefix("PIPE_")
            record: tuple[Any, ...] = (Kind.BARRIER, index, None if pipe == "ALL" else _pipe(pipe, op))
            return self._sync(record)
        kind = Kind.SET if op.name == "hivm.hir.set_flag" else Kind.WAIT
        pipes = tuple(_pipe(op.attrs[key].removeprefix("PIPE_"), op) for key in ("set_pipe", "wait_pipe"))
        if not op.operands:
            return self._sync((kind, index, (*pipes, int(op.attrs["static_event_id"].removeprefix("EVENT_ID")))))

        def run(event_id: int) -> None:
            if self._trace is not None:
                self._trace.events.append((kind, index, (*pipes, event_id)))

        return run

    def _sync(self, record: tuple[Any, ...]) -> Callable[..., Any]:
        def run() -> None:
            if self._trace is not None:
                self._trace.events.append(record)

        return run

    def _bind_scalar_load(self, index: int, event: Event, op: Op) -> Callable[..., Any]:
        figures = costs.table()
        in_ub = op.operands[0].memref.space == "ub"
        record = (Kind.ACCESS, index, figures["scalar_ub_access" if in_ub else "scalar_gm_access"])
        values, checks = self._values, self._checks

        def run(view: View, *at: int) -> Any:
            spot = _element(view, at)
            result: Any = UNKNOWN
            if values:
                if in_ub and checks:
                    self._must_be_written(spot, op)
                if not in_ub:
                    self._must_be_inside(spot, op)
                    if checks:
                        self.accesses.append(GmAccess(spot, False, False, index, self._program))
                result = _scalar(spot)
            elif not in_ub and view.memory.data is not None and _inside(spot):
                result = _scalar(spot)
            if self._trace is not None:
                if in_ub and checks:
                    self._touch(self._trace, [spot], [])
                self._trace.events.append(record)
            return result

        return run

    def _bind_scalar_store(self, index: int, event: Event, op: Op) -> Callable[..., Any]:
        figures = costs.table()
        in_ub = op.operands[1].memref.space == "ub"
        record = (Kind.ACCESS, index, figures["scalar_ub_access" if in_ub else "scalar_gm_access"])
        values, checks = self._values, self._checks

        def run(value: Any, view: View, *at: int) -> None:
            spot = _element(view, at)
            _must_be_defined(value)
            if values:
                if not in_ub:
                    self._must_be_inside(spot, op)
                    if checks:
                        self.accesses.append(GmAccess(spot, True, False, index, self._program))
                spot.array()[...] = value
                if in_ub:
                    _mark_written(spot)
            if self._trace is not None:
                if in_ub and checks:
                    self._touch(self._trace, [], [spot])
                self._trace.events.append(record)

        return run

    # Checks.

    def _touch(self, trace: Trace, reads: list[View], writes: list[View]) -> None:
        read, written = ([span for view in views for span in _ranges(view)] for views in (reads, writes))
        trace.touched.append((len(trace.events), read, written))

    def _must_be_written(self, view: View, op: Op) -> None:
        valid = view.valid()
        if not (valid == np.iinfo(valid.dtype).max).all():
            lost = int((valid != np.iinfo(valid.dtype).max).sum())
            self.report("unwritten", op.where, f"{op.name} reads {lost} of {view.elements} elements of UB that nothing wrote")

    def _must_be_inside(self, view: View, op: Op) -> None:
        if not _inside(view):
            low, high = view.span()
            raise OutOfBounds(
                f"{self.kernel.name} at {op.where or 'an unknown line'}: {op.name} of program {self._program} touches bytes "
                f"{low} to {high} of {view.memory.name}, whose storage has {view.memory.size}"
            )

    def report(self, kind: str, where: str, message: str) -> None:
        """Keep a finding; the first of its kind at a line stands for all."""
        self.findings.setdefault((kind, where), Finding(kind, self.kernel.name, where, message))


def _pipe(name: str, op: Op) -> Pipe:
    if name not in Pipe.__members__:
        raise NotImplementedError(f"{op.name} on pipe {name} at {op.where} is not covered by the emulator")
    return Pipe[name]


def _must_have_size(view: View, op: Op) -> None:
    for size in view.sizes:
        if as_index(size) < 0:
            raise UndefinedBehavior(
                f"{op.name} at {op.where or 'an unknown line'}: a box of sizes {view.sizes} (a mask whose end is below its start?)"
            )


def _must_be_defined(number: Any) -> None:
    if isinstance(number, Undefined):
        bool(number)


def _must_fit(source: View, target: View, op: Op) -> None:
    if source.sizes != target.sizes:
        raise NotImplementedError(f"{op.name} of sizes {source.sizes} to {target.sizes} at {op.where} is not covered by the emulator")


def _no_view() -> View:
    return View(_NO_BYTES, 0, 0, (0,), (1,), "i8")


def _inside(view: View) -> bool:
    low, high = view.span()
    return low >= 0 and high <= view.memory.size


def _element(view: View, at: tuple[int, ...]) -> View:
    offset = view.offset + sum(index * stride for index, stride in zip(at, view.strides, strict=True))
    return View(view.memory, view.base, offset, (), (), view.dtype)


def _scalar(spot: View) -> int | float:
    value: Array = spot.array()
    return float(value.item()) if spot.dtype in FLOATS else int(value.item())


def _mark_written(view: View) -> None:
    valid = view.valid()
    valid[...] = np.iinfo(valid.dtype).max


def _pad(view: View, value: float) -> None:
    """A padded load fills the last 32-byte block of each row."""
    width = NUMPY[view.dtype].itemsize
    *outer, inner = view.sizes
    extra = -inner * width % 32 // width
    pitch = min((stride for size, stride in zip(view.sizes[:-1], view.strides[:-1], strict=True) if size > 1), default=inner + extra)
    if extra and view.strides[-1] == 1 and pitch >= inner + extra:
        rest = View(view.memory, view.base, view.offset + inner, (*outer, extra), view.strides, view.dtype)
        rest.array()[...] = value
        _mark_written(rest)


def _ranges(view: View) -> list[tuple[int, int]]:
    """Byte ranges of a UB view, one per contiguous run; offsets count in bits, for a packed i1 shares its bytes."""
    pieces, _ = view.runs()
    if pieces <= 1:
        return [view.span()] if pieces else []
    bits = BITS[view.dtype]
    starts = np.full(1, 8 * view.base + view.offset * bits)
    run, contiguous = 1, True
    for size, stride in zip(reversed(view.sizes), reversed(view.strides), strict=True):
        if size == 1:
            continue
        if contiguous and stride == run:
            run *= size
            continue
        contiguous = False
        starts = (starts[None, :] + (np.arange(size) * stride * bits)[:, None]).reshape(-1)
    return sorted({(start // 8, -(-(start + run * bits) // 8)) for start in starts.tolist()})
