"""What instructions cost: the figures of `costs.json` and the rules that apply them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from importlib import resources
from typing import Any, Literal

import torch

from npu_op_runtime.soc import GIB, Soc

from .dtypes import BITS
from .memory import View
from .program import MemRefType, Op
from .vector import operands

Ceiling = Literal["cann", "measured"]


@functools.cache
def table() -> dict[str, Any]:
    """`costs.json` without the sources: name -> figure; "rates" by class of instruction, "measured" by GiB of HBM, "cube" by bits."""
    raw = json.loads(resources.files(__package__).joinpath("costs.json").read_text())
    rates = {name: entry["value"] for name, entry in raw["vector_bytes_per_cycle"].items()}
    measured = {entry["hbm_gib"]: entry["value"] for entry in raw["measured_bandwidth"]}
    cube = {entry["bits"]: entry["value"] for entry in raw["cube_flops_per_cycle"]}
    plain = {name: entry["value"] for name, entry in raw.items() if isinstance(entry, dict) and "value" in entry}
    return {**plain, "rates": rates, "measured": measured, "cube": cube}


def gm_bandwidth(soc: Soc, ceiling: Ceiling) -> float:
    """Bytes per second of GM under a ceiling.

    "cann": cube cores x ddr_rate x clock, what CANN's platform files say. "measured": what public measurements reach on a part
    with the same HBM (see `measured_bandwidth` in costs.json); on the 64 GB parts that is more than CANN's figure.

    Raises:
        ValueError: unknown ceiling, or a SoC without a figure for it.
    """
    if ceiling not in ("cann", "measured"):
        raise ValueError(f"ceiling must be 'cann' or 'measured' (got {ceiling!r})")
    if soc.gm_bandwidth is None:
        raise ValueError(f"soc {soc.name} has no GM rate in the SoC table: its time cannot be modelled")
    if ceiling == "cann":
        return soc.gm_bandwidth
    measured: dict[int, float] = table()["measured"]
    if soc.hbm_bytes // GIB not in measured:
        raise ValueError(f"soc {soc.name} has no measured bandwidth: model it with ceiling='cann'")
    return measured[soc.hbm_bytes // GIB]


def cube_rate(soc: Soc, dtype: torch.dtype, ceiling: Ceiling) -> float:
    """Floating-point operations per second of all cube cores, for matrix products of operands of `dtype`.

    "cann": the cube's multiply-adds per cycle x cores x clock. "measured": the share of it that large products reach in published figures.

    Raises:
        ValueError: a SoC whose cube is not that of the A2 and A3 parts.
        NotImplementedError: operands of other than 16 or 32 bits.
    """
    if soc.generation not in ("A2", "A3"):
        raise ValueError(f"soc {soc.name} has no cube rate: the time of a matrix product cannot be modelled")
    bits, rates = 8 * dtype.itemsize, table()["cube"]
    if not dtype.is_floating_point or bits not in rates:
        raise NotImplementedError(f"a matrix product of {dtype} is not covered by the eager model")
    peak: float = soc.cube_cores * rates[bits] * soc.clock_hz
    return peak if ceiling == "cann" else peak * table()["cube_share"]


_BEAT = 256  # bytes that the vector unit takes at a time (AscendC: a repeat)

_CLASS = {
    "vexp": "transcendental",
    "vln": "transcendental",
    "vsqrt": "transcendental",
    "vrsqrt": "transcendental",
    "vdiv": "divide",
    "vrec": "divide",
    "vcmp": "compare",
    "vsel": "select",
    "vcast": "cast",
    "varange": "fill",
    "vreduce": "reduce",
    "vinterleave": "shuffle",
    "vdeinterleave": "shuffle",
    "vtranspose": "shuffle",
}


def vector_class(op: Op) -> str:
    """The class of instruction that a vector operation is charged as."""
    name = op.name.removeprefix("hivm.hir.")
    if name in _CLASS:
        return _CLASS[name]
    memrefs = [isinstance(value.type, MemRefType) for value in op.operands]
    if name == "vbrc":
        return "one_operand" if memrefs[0] else "fill"
    return "two_operand" if name not in ("copy", "vabs", "vnot", "vrelu") and memrefs[0] and memrefs[1] else "one_operand"


def vector_cycles(op: Op) -> Callable[[tuple[Any, ...]], int]:
    """Cycles that the vector pipe is busy with an operation, from its operands (views and scalars)."""
    costs, kind = table(), vector_class(op)
    rate, piece, latency = costs["rates"][kind], costs["vector_piece"], costs["vector_latency"]
    layout = operands(op)
    used = [*layout.inputs, *layout.outputs]

    def cycles(args: tuple[Any, ...]) -> int:
        views = [args[at] for at in used if isinstance(args[at], View)]
        elements: int = max(view.elements for view in views)
        bits = max(BITS[view.dtype] for view in views)
        pieces = max(view.runs()[0] for view in views)
        beats = elements * bits / 8 / rate
        if kind in ("two_operand", "compare"):
            beats *= _conflict(*(args[at] for at in layout.inputs[:2]))
        busy: int = math.ceil(beats) + piece * (pieces - 1)
        if kind == "reduce":
            busy += latency * (_folds(args[0], args[1], op.attrs["reduce_dims"]) - 1)
        return max(busy, 1)

    return cycles


def _folds(source: View, target: View, axes: list[int]) -> int:
    """Steps of a reduction's tree, each waiting for the one before: halves down to a beat of 256 bytes, then within the beat."""
    length = source.elements // max(target.elements, 1)
    if len(source.sizes) - 1 not in axes:
        return max(math.ceil(math.log2(max(length, 1))), 1)
    lanes = 8 * _BEAT // BITS[source.dtype]
    return max(math.ceil(math.log2(max(length / lanes, 1))), 0) + 1


def _conflict(first: Any, second: Any) -> float:
    """Cycles a beat: 1, or up to 2 by the share of bank groups in which two operands meet (their 256 bytes fill half of them)."""
    if not (isinstance(first, View) and isinstance(second, View)):
        return 1.0
    groups: int = table()["bank_groups"]
    apart = abs(first.start - second.start) // 32 % groups
    return 1.0 + abs(apart - groups // 2) / (groups // 2)


def transfer_bytes(view: View) -> tuple[float, int]:
    """Bytes that a GM view occupies on the way, and its number of pieces.

    A short piece moves a whole UB block; a piece that starts within a 512-byte line touches one line more than its size needs.
    """
    figures = table()
    granule, line = figures["dma_granule"], figures["dma_line"]
    pieces, run = view.runs()
    if pieces <= 1:
        return run, pieces
    pitch = min(
        (stride for size, stride in zip(view.sizes, view.strides, strict=True) if size > 1 and stride * BITS[view.dtype] // 8 >= run),
        default=0,
    )
    offsets = [(view.start + piece * pitch * BITS[view.dtype] // 8) % line for piece in range(min(pieces, line))]
    touched = sum((offset + run - 1) // line + 1 for offset in offsets) / len(offsets)
    return pieces * (-(-run // granule) * granule) * touched / -(-run // line), pieces
