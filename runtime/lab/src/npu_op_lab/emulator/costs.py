"""What instructions cost: the figures of `costs.json` and the rules that apply them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from importlib import resources
from typing import Any, Literal

from npu_op_runtime.soc import Soc

from .dtypes import BITS
from .memory import View
from .program import MemRefType, Op

Ceiling = Literal["cann", "measured"]


@functools.cache
def table() -> dict[str, Any]:
    """`costs.json` without the sources: name -> figure."""
    raw = json.loads(resources.files(__package__).joinpath("costs.json").read_text())
    rates = {name: entry["value"] for name, entry in raw["vector_bytes_per_cycle"].items()}
    return {name: entry["value"] for name, entry in raw.items() if isinstance(entry, dict) and "value" in entry} | {"rates": rates}


def gm_bandwidth(soc: Soc, ceiling: Ceiling) -> float:
    """Bytes per second of GM under a ceiling.

    "cann": cube cores x ddr_rate x clock, what CANN's platform files say. "measured": the share of it that eager PyTorch
    streams at on a 910B4 (see `measured_share` in costs.json), applied to every SoC.

    Raises:
        ValueError: unknown ceiling, or a SoC without a figure for its GM rate.
    """
    if ceiling not in ("cann", "measured"):
        raise ValueError(f"ceiling must be 'cann' or 'measured' (got {ceiling!r})")
    if soc.gm_bandwidth is None:
        raise ValueError(f"soc {soc.name} has no GM rate in the SoC table: its time cannot be modelled")
    share: float = table()["measured_share"] if ceiling == "measured" else 1.0
    return soc.gm_bandwidth * share


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

    def cycles(args: tuple[Any, ...]) -> int:
        views = [arg for arg in args[:3] if isinstance(arg, View)]
        elements: int = max(view.elements for view in views)
        bits = max(BITS[view.dtype] for view in views)
        pieces = max(view.runs()[0] for view in views)
        busy: int = math.ceil(elements * bits / 8 / rate) + piece * (pieces - 1)
        if kind == "reduce":
            kept = math.prod(args[1].sizes)
            # Each fold of the tree waits for the one before it.
            busy += latency * max(math.ceil(math.log2(max(elements // max(kept, 1), 1))) - 1, 0)
        return max(busy, 1)

    return cycles


def transfer_bytes(view: View) -> tuple[int, int]:
    """Bytes that a GM view occupies on the way (a short piece moves a whole UB block) and its number of pieces."""
    granule = table()["dma_granule"]
    pieces, run = view.runs()
    return pieces * (-(-run // granule) * granule if pieces > 1 else run), pieces
