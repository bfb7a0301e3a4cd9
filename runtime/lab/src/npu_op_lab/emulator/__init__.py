"""Runs compiled Ascend kernels on NumPy: their values, their time line, their faults. Every time is modelled, none measured."""

from __future__ import annotations

from .costs import Ceiling, gm_bandwidth
from .eager import AtenKernel, EagerTiming, model_eager
from .findings import Finding, OutOfBounds, UndefinedBehavior
from .kernel import EmulatedLaunch, KernelTiming
from .run import Emulation, FaultyKernel, RunTime, emulate
from .timeline import ProgramTime, Slice, Stall

__all__ = [
    "AtenKernel",
    "Ceiling",
    "EagerTiming",
    "EmulatedLaunch",
    "Emulation",
    "FaultyKernel",
    "Finding",
    "KernelTiming",
    "OutOfBounds",
    "UndefinedBehavior",
    "ProgramTime",
    "RunTime",
    "Slice",
    "Stall",
    "emulate",
    "gm_bandwidth",
    "model_eager",
]
