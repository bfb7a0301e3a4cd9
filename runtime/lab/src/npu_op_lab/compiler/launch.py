"""What the offline compiler hands on: a compiled kernel and a recorded launch of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel compiled for one SoC.

    Attributes:
        name: the kernel function's name, also the symbol of its function in `ir`.
        soc: compiler target, `Ascend910B4`.
        ir: HIVM IR text in generic form, taken before convert-hivm-to-std, affine maps lowered, every operation with the
            location of its Python source line (`loc("kernel.py":12:8)`).
        notes: the compiler's "[NOTE]" lines: its retries after a UB overflow (code motion off, multi-buffering off).
        seconds: wall time of the vendor's compiler, measured when the kernel was compiled (a cached kernel keeps it).
        key: content hash of source, signature, constants, options and target.
    """

    name: str
    soc: str
    ir: str
    notes: tuple[str, ...]
    seconds: float
    key: str


@dataclass
class Launch:
    """One recorded launch.

    Attributes:
        kernel: what would run.
        grid: number of programs per axis, always three.
        args: the live arguments (torch tensors and Python scalars) in the order of the IR function's arguments after
            ffts address, lock and workspace; constexpr and specialised-away arguments are gone.
    """

    kernel: CompiledKernel
    grid: tuple[int, int, int]
    args: list[Any]
