"""The offline Ascend compiler: Triton kernel -> triton-ascend -> bishengir-compile -> HIVM IR, with no NPU and no CANN."""

from __future__ import annotations

from . import requirements as requirements  # first: it explains what is missing
from .analysis import KernelReport, LoopReport, Transfer, report
from .errors import CompileError, UbOverflow
from .gate import check
from .launch import CompiledKernel, Launch
from .offline import offline

__all__ = [
    "CompileError",
    "CompiledKernel",
    "KernelReport",
    "Launch",
    "LoopReport",
    "Transfer",
    "UbOverflow",
    "check",
    "offline",
    "report",
]
