"""Emulates one recorded launch and says where its time goes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from npu_op_runtime.soc import Soc

from . import costs
from .chip import Chip, core_classes
from .findings import Finding
from .hazards import gm_hazards, ub_hazards
from .machine import Machine
from .timeline import ProgramTime, Stall, longest_first
from .trace import Kind, Pipe, Trace
from .translate import Event, Translated, translate

if TYPE_CHECKING:
    from ..compiler import Launch

Bound = Literal["HBM", "vector", "scalar", "latency"]

# Grids up to this size have every program recorded; of larger ones this many are, spread evenly, the first and the last among them.
_RECORDED = 64
# Below this share of the time no unit is called the bound: the time goes into waiting for one another.
_BOUND_SHARE = 0.6


@dataclass
class KernelTiming:
    """Modelled time of one launch on the device, without its launch cost.

    Attributes:
        name, soc, ceiling, grid: what was modelled.
        cycles, seconds: of the slowest core.
        hbm_in, hbm_out, l2: bytes of the whole launch from HBM, to HBM, and served by L2.
        busy: share of the slowest core's time that a pipe ("V", "MTE2", "MTE3", "S") works.
        hbm_share: HBM bytes at the ceiling over the modelled time.
        bound: the unit that is busy at least 60 % of the time, the busiest if several are, else "latency".
        stalls: of the slowest core, longest first: pipe, source line, cause, cycles.
    """

    name: str
    soc: str
    ceiling: costs.Ceiling
    grid: tuple[int, int, int]
    cycles: float
    seconds: float
    hbm_in: float
    hbm_out: float
    l2: float
    busy: dict[str, float]
    hbm_share: float
    bound: Bound
    stalls: list[Stall] = field(repr=False)

    @property
    def roof_share(self) -> float:
        """Roof, the larger of HBM and vector time, over the modelled time: 1.0 leaves nothing to gain without moving or computing less."""
        return max(self.hbm_share, self.busy["V"])


class EmulatedLaunch:
    """A launch that has been run: its faults, and its time under any ceiling.

    Args:
        launch: what the offline compiler recorded.
        soc: the row it was compiled for.
        values: compute results into the launch's tensors.
        checks: look for faults (with values only).
        cached: storages (`_cdata`) that L2 holds before it.
        blank: storages that hold what nobody computed (without values only).

    Attributes:
        read, written: storages that it moved data from and to.

    Raises:
        NotImplementedError: an operation that the emulator does not cover.
        OutOfBounds: an access outside a tensor's storage.
    """

    def __init__(
        self, launch: Launch, soc: Soc, *, values: bool, checks: bool, cached: Collection[int] = (), blank: Collection[int] = ()
    ) -> None:
        self.launch, self.soc = launch, soc
        self._kernel: Translated = translate(launch.kernel.ir)
        machine = Machine(
            self._kernel,
            launch.args,
            launch.grid,
            soc.vector_cores,
            soc.l2_bytes,
            values=values,
            checks=checks,
            cached=cached,
            blank=blank,
        )
        programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
        recorded = _sample(programs)
        classes: dict[tuple[tuple[object, ...], ...], int] = {}
        self.traces: list[Trace] = []
        found: dict[int, int] = {}
        for program in range(programs) if values else recorded:
            trace = Trace() if program in recorded else None
            machine.run(program, trace)
            if trace is not None:
                found[program] = classes.setdefault(tuple(trace.events), len(classes))
                if found[program] == len(self.traces):
                    self.traces.append(trace)
        self._program_classes = [found[_nearest(recorded, program, programs)] for program in range(programs)]
        if checks and values:
            self._look_for_hazards(machine)
        self.findings: list[Finding] = list(machine.findings.values())
        self.read, self.written = machine.read, machine.written
        machine.let_go()

    @property
    def name(self) -> str:
        return self._kernel.name

    @property
    def events(self) -> list[Event]:
        """The events that `traces` refer to."""
        return self._kernel.events

    def timing(self, ceiling: costs.Ceiling, pending: Collection[int] = ()) -> KernelTiming:
        """Modelled time under a ceiling; what is stored to the storages in `pending` stays in L2, whoever writes it to HBM later."""
        times, _ = self._chip(ceiling, pending).time()
        slowest = times[0]
        cycles = max(slowest.cycles, 1.0)
        total = {part: sum(time.core.cores * getattr(program, part) for time in times for program in time.programs) for part in _BYTES}
        busy = {pipe: sum(program.busy[pipe] for program in slowest.programs) / cycles for pipe in slowest.programs[0].busy}
        hbm = (total["hbm_in"] + total["hbm_out"]) / self._bandwidth(ceiling) / cycles
        return KernelTiming(
            self.name,
            self.soc.name,
            ceiling,
            self.launch.grid,
            cycles,
            cycles / self.soc.clock_hz,
            *(total[part] for part in _BYTES),
            busy,
            hbm,
            _bound(hbm, busy),
            _merge([stall for program in slowest.programs for stall in program.stalls]),
        )

    def detail(self, ceiling: costs.Ceiling) -> ProgramTime:
        """The first program of the slowest core, instruction by instruction and by operation."""
        times, rate = self._chip(ceiling).time()
        return self._chip(ceiling).detail(times[0].core.programs[0], rate)

    def _chip(self, ceiling: costs.Ceiling, pending: Collection[int] = ()) -> Chip:
        classes = core_classes(self._program_classes, self.soc.vector_cores)
        traces = [_stored_in_l2(trace, pending) for trace in self.traces] if pending else self.traces
        return Chip(self._kernel.events, traces, classes, self._bandwidth(ceiling))

    def _bandwidth(self, ceiling: costs.Ceiling) -> float:
        return costs.gm_bandwidth(self.soc, ceiling) / self.soc.clock_hz

    def _look_for_hazards(self, machine: Machine) -> None:
        for trace in self.traces:
            hazards, awaited = ub_hazards(trace)
            for hazard in hazards:
                first, second = self._describe(hazard.first), self._describe(hazard.second)
                machine.report("race", self._where(hazard.second), f"{second} and {first} touch the same UB bytes: {hazard.conflict}")
            if awaited is not None:
                machine.report("deadlock", self._where(awaited), f"{self._describe(awaited)} waits for a flag that nothing sets")
        for one, two in gm_hazards(machine.accesses):
            machine.report(
                "gm-race",
                self._where(two.event),
                f"{self._describe(two.event)} of program {two.program} and {self._describe(one.event)} of program {one.program} "
                f"touch the same bytes of {two.view.memory.name}",
            )

    def _where(self, event: int) -> str:
        op = self._kernel.events[event].op
        return op.where if op else ""

    def _describe(self, event: int) -> str:
        op = self._kernel.events[event].op
        if op is None:
            return "scalar code"
        flag = f"({op.attrs['set_pipe']} to {op.attrs['wait_pipe']})" if "set_pipe" in op.attrs else ""
        return f"{op.name}{flag}" + (f" ({op.where})" if op.where else "")


_BYTES = ("hbm_in", "hbm_out", "l2")


def _stored_in_l2(trace: Trace, storages: Collection[int]) -> Trace:
    """The trace with stores to `storages` ending in L2."""
    stored = Trace()
    for event in trace.events:
        if event[0] is Kind.TRANSFER and event[2] is Pipe.MTE3 and event[7] in storages:
            event = (*event[:3], 0.0, event[3] + event[4], *event[5:])
        stored.events.append(event)
    return stored


def _sample(programs: int) -> list[int]:
    if programs <= _RECORDED:
        return list(range(programs))
    return sorted({round(index * (programs - 1) / (_RECORDED - 1)) for index in range(_RECORDED)})


def _nearest(recorded: list[int], program: int, programs: int) -> int:
    if len(recorded) == programs:
        return program
    return recorded[round(program * (len(recorded) - 1) / (programs - 1))]


def _bound(hbm: float, busy: dict[str, float]) -> Bound:
    shares: dict[Bound, float] = {"HBM": hbm, "vector": busy["V"], "scalar": busy["S"]}
    most = max(shares, key=lambda unit: shares[unit])
    return most if shares[most] >= _BOUND_SHARE else "latency"


def _merge(stalls: list[Stall]) -> list[Stall]:
    """Stalls of several programs, added up by pipe, line and cause."""
    merged: dict[tuple[str, str, str], float] = {}
    for stall in stalls:
        key = stall.pipe, stall.where, stall.cause
        merged[key] = merged.get(key, 0.0) + stall.cycles
    return longest_first(Stall(*key, cycles) for key, cycles in merged.items())
