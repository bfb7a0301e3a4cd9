"""Says in words where a launch's time goes and what to change, each with its source line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .costs import Ceiling
from .kernel import EmulatedLaunch, KernelTiming
from .timeline import ProgramTime, Work

# What costs less than this share of the time is not worth a word.
_WORTH = 0.05
# Transfers below this size do not hide their latency (4 KB is where a double-buffered stream reaches its share of HBM).
_SMALL = 4096
_ELEMENT = 32  # bytes: a piece of at most a UB block is an element on its own


@dataclass(frozen=True)
class Advice:
    """One remark.

    Attributes:
        topic: "bound", "scalar reduction", "double buffering", "small transfers", "discrete access", "reload", "vector work",
            "scalar work", "programs", "idle cores".
        where: the source line, "" where it concerns the launch.
        text: what was seen and what to change.
        share: of the modelled time that it concerns; 0 for a remark on the whole.
    """

    topic: str
    where: str
    text: str
    share: float


def advise(launch: EmulatedLaunch, ceiling: Ceiling) -> list[Advice]:
    """What to change in a kernel, the costliest first; the first entry says what bounds it."""
    timing, program = launch.timing(ceiling), launch.detail(ceiling)
    found = [
        *_scalar_reductions(timing),
        *_double_buffering(launch, timing),
        *_transfers(program),
        *_reloads(program),
        *_vector_work(timing, program),
        *_scalar_work(timing, program),
        *_grid(launch),
    ]
    return [_bound(timing), *sorted((advice for advice in found), key=lambda advice: -advice.share)]


def _bound(timing: KernelTiming) -> Advice:
    busy = ", ".join(f"{pipe} {share:.0%}" for pipe, share in timing.busy.items())
    whole = (
        f"{timing.seconds * 1e6:.1f} us modelled on {timing.soc}, ceiling {timing.ceiling}; busy: {busy}; HBM at {timing.hbm_share:.0%}. "
    )
    reason = {
        "HBM": "Bound by HBM: only moving fewer bytes makes it faster.",
        "vector": "Bound by the vector unit: only fewer or cheaper vector operations make it faster.",
        "scalar": "Bound by the scalar unit: work that should be vector operations runs element by element.",
        "latency": "Bound by nothing: the pipes wait for one another; larger tiles and double buffering let them overlap.",
    }[timing.bound]
    return Advice("bound", "", whole + reason, 0.0)


def _scalar_reductions(timing: KernelTiming) -> Iterable[Advice]:
    waits: dict[str, float] = defaultdict(float)
    for stall in timing.stalls:
        if stall.pipe == "S" and stall.cause.startswith("V"):
            waits[stall.where] += stall.cycles / timing.cycles
    for where, share in waits.items():
        if share >= _WORTH:
            yield Advice(
                "scalar reduction",
                where,
                f"the scalar unit waits for the vector pipe {share:.0%} of the time, and nothing new is issued meanwhile: a 1-D tile "
                "reduced to a scalar does that at every row. Load several rows as a 2-D tile and reduce along an axis.",
                share,
            )


def _double_buffering(launch: EmulatedLaunch, timing: KernelTiming) -> Iterable[Advice]:
    if any("multi-buffer" in note and "false" in note for note in launch.launch.kernel.notes):
        share = sum(stall.cycles for stall in timing.stalls if stall.pipe == "MTE2" and stall.cause.startswith("V")) / timing.cycles
        yield Advice(
            "double buffering",
            "",
            "the tiles did not fit UB twice, so the compiler dropped double buffering: MTE2 waits for the vector pipe "
            f"{share:.0%} of the time. Make the tile smaller.",
            share,
        )


def _transfers(program: ProgramTime) -> Iterable[Advice]:
    for work in program.work:
        share = work.cycles / program.cycles
        if not work.pieces or share < _WORTH:
            continue
        piece, each = (work.hbm + work.l2) / work.pieces, (work.hbm + work.l2) / work.times
        if piece <= _ELEMENT and work.pieces > work.times:
            yield Advice(
                "discrete access",
                work.where,
                f"{work.name} moves {work.pieces / work.times:.0f} pieces of {piece:.0f} bytes each: elements that are not contiguous in "
                "memory. Load the contiguous range and pick the elements in UB.",
                share,
            )
        elif each < _SMALL:
            yield Advice(
                "small transfers",
                work.where,
                f"{work.name} moves {each:.0f} bytes at a time, {work.times:.0f} times: its latency is not hidden. Move at least "
                f"{_SMALL // 1024} KB, several rows at a time.",
                share,
            )


def _reloads(program: ProgramTime) -> Iterable[Advice]:
    for work in program.work:
        share = work.cycles / program.cycles
        if work.pipe == "MTE2" and work.times > 1 and work.l2 > work.hbm and share >= _WORTH:
            yield Advice(
                "reload",
                work.where,
                f"{work.name} fetches {work.l2 / 1024:.0f} KB that this program had before (from L2, {work.times:.0f} loads). "
                "Load it once before the loop, or keep the whole row in UB between the passes.",
                share,
            )


def _vector_work(timing: KernelTiming, program: ProgramTime) -> Iterable[Advice]:
    if timing.bound != "vector":
        return
    for where, parts in _by_line(work for work in program.work if work.pipe == "V").items():
        share = sum(work.cycles for work in parts) / program.cycles
        if share >= 2 * _WORTH:
            counts = ", ".join(
                f"{work.name} {work.cycles / program.cycles:.0%}" for work in sorted(parts, key=lambda work: -work.cycles)[:4]
            )
            yield Advice("vector work", where, f"{share:.0%} of the time is this line's vector operations: {counts}.", share)


def _scalar_work(timing: KernelTiming, program: ProgramTime) -> Iterable[Advice]:
    for where, parts in _by_line(work for work in program.work if work.pipe == "S").items():
        share = sum(work.cycles for work in parts) / program.cycles
        if share >= _WORTH:
            times = sum(work.times for work in parts)
            yield Advice(
                "scalar work",
                where,
                f"{times:.0f} scalar loads and stores, {share:.0%} of the time: the compiler runs this line element by element (int64 or "
                "int16 comparison, %, a data-dependent index, or a value taken out of a tile).",
                share,
            )


def _grid(launch: EmulatedLaunch) -> Iterable[Advice]:
    programs, cores = launch.launch.grid[0] * launch.launch.grid[1] * launch.launch.grid[2], launch.soc.vector_cores
    if programs > cores:
        yield Advice(
            "programs",
            "",
            f"{programs} programs on {cores} vector cores: each further one pays its start. Launch {cores} and loop inside.",
            0.0,
        )
    elif programs < cores:
        yield Advice("idle cores", "", f"{programs} programs leave {cores - programs} of {cores} vector cores idle.", 0.0)


def _by_line(works: Iterable[Work]) -> dict[str, list[Work]]:
    lines: dict[str, list[Work]] = defaultdict(list)
    for work in works:
        lines[work.where].append(work)
    return lines
