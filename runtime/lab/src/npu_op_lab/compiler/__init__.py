"""The offline Ascend compiler: Triton kernel -> triton-ascend -> bishengir-compile -> HIVM IR, with no NPU and no CANN."""

from __future__ import annotations

from .errors import CompileError, UbOverflow
from .launch import CompiledKernel, Launch
from .offline import offline

__all__ = ["CompileError", "CompiledKernel", "Launch", "UbOverflow", "offline"]
