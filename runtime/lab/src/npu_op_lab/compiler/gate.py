"""What a compiled kernel must hold: the compile gate of every operator."""

from __future__ import annotations

from npu_op_runtime.soc import get_soc

from .analysis import KernelReport, LoopReport

# bishengir-compile 1.2.0's words when it gives up double buffering after a UB overflow.
_DROPPED = "enable-auto-multi-buffer to false"


def check(report: KernelReport) -> list[str]:
    """The violations of a kernel, one sentence each; none means that it passes.

    Double buffering kept on every hot loop, no scalar loop and no scalar synchronisation per trip in it, no barrier of all
    pipes per trip, UB within the SoC's, no fp16 or bf16 scalar argument. A scalar loop beside the hot loops, run once, is
    allowed; in a kernel without a hot loop it is all there is, and is not.
    """
    capacity = get_soc(report.soc).ub_bytes
    found = []
    if report.ub_bytes > capacity:
        found.append(f"UB: {report.ub_bytes} bytes planned, {capacity} available")
    if any(_DROPPED in note for note in report.retries):
        found.append("the compiler dropped double buffering to fit the UB: make the tile smaller")
    if report.half_scalars:
        found.append(f"run-time scalars of type {', '.join(report.half_scalars)}: pass fp32")
    for loop in report.hot_loops:
        found += _hot(loop)
    found += [
        f"scalar loop at {loop.line}: {loop.scalar_loads} loads and {loop.scalar_stores} stores of one element per trip"
        + (f", {loop.trips} trips" if loop.trips is not None else "")
        for loop in report.scalar_loops
        if loop.depth or not report.hot_loops
    ]
    return [f"{report.kernel} for {report.soc}: {violation}" for violation in found]


def _hot(loop: LoopReport) -> list[str]:
    found = [
        f"loop at {loop.line}: the load at {transfer.line} has one buffer, it waits for the previous trip"
        for transfer in loop.transfers
        if transfer.direction == "in" and transfer.buffers < 2
    ]
    if loop.scalar_syncs:
        found.append(f"loop at {loop.line}: {loop.scalar_syncs} waits between the scalar unit and other pipes per trip")
    if loop.full_barriers:
        found.append(f"loop at {loop.line}: {loop.full_barriers} barriers of all pipes per trip")
    return found
