"""What the vendor's compiler made of a kernel, in the few figures that a benchmark shows beside its time."""

from __future__ import annotations

from typing import Any

from ..compiler import CompiledKernel, KernelReport, check, report
from ..emulator import KernelTiming

_reports: dict[str, KernelReport] = {}


def describe(kernel: CompiledKernel, timing: KernelTiming) -> dict[str, Any]:
    """The record's description of one launch.

    Loop figures are those of the hot loops together, per trip: GM bytes in and out, vector operations.
    """
    if kernel.key not in _reports:
        _reports[kernel.key] = report(kernel)
    found = _reports[kernel.key]
    return {
        "name": found.kernel,
        "ub_bytes": found.ub_bytes,
        "ub_share": round(found.ub_share, 4),
        "double_buffered": found.double_buffered,
        "bytes_in": sum(loop.bytes_in for loop in found.hot_loops),
        "bytes_out": sum(loop.bytes_out for loop in found.hot_loops),
        "vector_ops": sum(sum(loop.vector_ops.values()) for loop in found.hot_loops),
        "scalar_loops": len(found.scalar_loops),
        "violations": check(found),
        "us": timing.seconds * 1e6,
        "bound": timing.bound,
        "roof_share": timing.roof_share,
    }
