"""What the vector instructions compute, on NumPy arrays.

fp32 and fp16 arithmetic is IEEE, rounded per instruction; exp, ln, sqrt, rsqrt and reciprocal are computed in fp64 and rounded
once (the hardware's are within an ulp or two of that). bf16 has no arithmetic on A2/A3 (CANN platform_config, intrinsic map),
only moves and casts. max and min give NaN when an operand is NaN. A sum is a tree: the upper half of the reduced axis is added
to the lower half until one element is left, as the compiler's temporary of half the operand's size suggests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import FLOATS, NUMPY, Array, to_float, to_int
from .memory import View, read_bits, write_bits
from .program import MemRefType, Op

_ARITHMETIC = ("f16", "f32", "i16", "i32")


@dataclass(frozen=True)
class Operands:
    """Positions of an instruction's operands: what it reads (memrefs and scalars), writes, and scratches."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scratch: tuple[int, ...]


def operands(op: Op) -> Operands:
    """How the operands of a vector instruction divide."""
    if op.name == "hivm.hir.varange":
        return Operands((1, 2), (0,), ())
    sizes = op.attrs.get("operandSegmentSizes") or [1, 1, len(op.operands) - 2]
    inputs, outputs = sizes[0], sizes[1]
    return Operands(tuple(range(inputs)), tuple(range(inputs, inputs + outputs)), tuple(range(inputs + outputs, len(op.operands))))


def compute(op: Op) -> Callable[[tuple[Any, ...]], None]:
    """A function of the operands (views and scalars) that reads the inputs and writes the outputs.

    Raises:
        NotImplementedError: an instruction, or a form or element type of it, that is not covered, by name and line; from the
            function, operands whose sizes do not fit one another (NumPy would stretch one of them silently).
    """
    name = op.name.removeprefix("hivm.hir.")
    if name not in _MAKERS:
        raise _uncovered(op, "")
    if op.attrs.get("transpose"):
        raise _uncovered(op, "with an implicit transpose")
    run = _MAKERS[name](op)

    def checked(args: tuple[Any, ...]) -> None:
        try:
            run(args)
        except _Misfit as misfit:
            raise _uncovered(op, str(misfit)) from None

    return checked


class _Misfit(Exception):
    """Operands whose sizes do not fit one another, or whose values the operation is not known to handle."""


def _uncovered(op: Op, what: str) -> NotImplementedError:
    return NotImplementedError(f"vector operation {op.name} {what} at {op.where or 'an unknown line'} is not covered by the emulator")


def _dtype(op: Op, at: int) -> str:
    type_ = op.operands[at].type
    return type_.dtype if isinstance(type_, MemRefType) else type_


def _read(operand: Any) -> Any:
    if not isinstance(operand, View):
        return operand
    return read_bits(operand) if operand.dtype == "i1" else operand.array()


def _write(view: View, values: Array) -> None:
    if values.shape != view.sizes:
        raise _Misfit(f"with a result of sizes {values.shape} for an output of sizes {view.sizes}")
    if view.dtype == "i1":
        write_bits(view, values)
    else:
        view.array()[...] = values


def _binary(function: Callable[..., Any]) -> Callable[[Op], Callable[[tuple[Any, ...]], None]]:
    def make(op: Op) -> Callable[[tuple[Any, ...]], None]:
        dtype = _dtype(op, 2)
        if dtype not in _ARITHMETIC:
            raise _uncovered(op, f"on {dtype}")

        def run(args: tuple[Any, ...]) -> None:
            first, second, out = _read(args[0]), _read(args[1]), args[2].array()
            if np.broadcast_shapes(np.shape(first), np.shape(second)) != out.shape:
                raise _Misfit(f"with operands of sizes {np.shape(first)} and {np.shape(second)} for an output of sizes {out.shape}")
            function(first, second, out=out)

        return run

    return make


def _bitwise(on_bits: Callable[..., Any]) -> Callable[[Op], Callable[[tuple[Any, ...]], None]]:
    def make(op: Op) -> Callable[[tuple[Any, ...]], None]:
        if _dtype(op, 0) in FLOATS:
            raise _uncovered(op, f"on {_dtype(op, 0)}")
        return lambda args: _write(args[-1], on_bits(*(_read(arg) for arg in args[:-1])))

    return make


def _shift(left: bool) -> Callable[[Op], Callable[[tuple[Any, ...]], None]]:
    def make(op: Op) -> Callable[[tuple[Any, ...]], None]:
        if _dtype(op, 0) in FLOATS:
            raise _uncovered(op, f"on {_dtype(op, 0)}")

        def run(args: tuple[Any, ...]) -> None:
            values, count = _read(args[0]), _read(args[1])
            if left:
                _write(args[2], np.left_shift(values, count))
                return
            shifted = np.right_shift(values, count)
            # The compiler marks every shift to the right as rounding; whether the chip then rounds is not documented.
            if op.attrs.get("round") and not np.array_equal(np.left_shift(shifted, count), values):
                raise _Misfit("that drops bits other than zero")
            _write(args[2], shifted)

        return run

    return make


def _unary(function: Callable[[Array], Array]) -> Callable[[Op], Callable[[tuple[Any, ...]], None]]:
    def make(op: Op) -> Callable[[tuple[Any, ...]], None]:
        if _dtype(op, 1) not in ("f16", "f32"):
            raise _uncovered(op, f"on {_dtype(op, 1)}")
        return lambda args: _write(args[1], function(args[0].array().astype(np.float64)).astype(NUMPY[args[1].dtype]))

    return make


_COMPARE: Mapping[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _compare(op: Op) -> Callable[[tuple[Any, ...]], None]:
    dtype, function = _dtype(op, 0), _COMPARE[op.attrs["compare_mode"]]
    if dtype not in ("f16", "f32", "i32"):
        raise _uncovered(op, f"on {dtype}")
    return lambda args: _write(args[2], function(_read(args[0]), _read(args[1])))


def _select(op: Op) -> Callable[[tuple[Any, ...]], None]:
    def run(args: tuple[Any, ...]) -> None:
        dtype = NUMPY[args[3].dtype]
        first, second = (np.asarray(_read(arg), dtype) for arg in args[1:3])
        _write(args[3], np.where(_read(args[0]), first, second))

    return run


def _cast(op: Op) -> Callable[[tuple[Any, ...]], None]:
    source, target, mode = _dtype(op, 0), _dtype(op, 1), op.attrs["round_mode"]
    if op.attrs["cast"] not in ("cast_signed", "cast_unsigned") or target == "i1":
        raise _uncovered(op, f"{source} -> {target}, {op.attrs['cast']}")
    if op.attrs["cast"] == "cast_unsigned" and source != "i1":
        raise _uncovered(op, f"{source} -> {target}, unsigned")
    if target in FLOATS:
        return lambda args: _write(args[1], to_float(_read(args[0]), target, mode))
    if source in FLOATS:
        return lambda args: _write(args[1], to_int(_read(args[0]), target, mode))
    if source != "i1" and NUMPY[source].itemsize > NUMPY[target].itemsize and mode != "truncwithoverflow":
        raise _uncovered(op, f"{source} -> {target}, {mode}")
    return lambda args: _write(args[1], _read(args[0]).astype(NUMPY[target]))


def _broadcast(op: Op) -> Callable[[tuple[Any, ...]], None]:
    return lambda args: _write(args[1], np.broadcast_to(np.asarray(_read(args[0]), NUMPY[args[1].dtype]), args[1].sizes))


def _arange(op: Op) -> Callable[[tuple[Any, ...]], None]:
    if len(op.operands) != 3:
        raise _uncovered(op, "of several axes")
    return lambda args: _write(args[0], (args[1] + args[2] * np.arange(args[0].elements)).reshape(args[0].sizes))


_REDUCE: Mapping[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def tree_reduce(values: Array, axis: int, function: Callable[..., Any]) -> Array:
    """Fold the upper half of `axis` onto the lower half until one element is left (kept as an axis of size 1)."""
    values = np.moveaxis(values, axis, 0)
    while (size := values.shape[0]) > 1:
        half = -(-size // 2)
        folded = values[:half].copy()
        folded[: size - half] = function(values[: size - half], values[half:])
        values = folded
    return np.moveaxis(values, 0, axis)


def _reduce(op: Op) -> Callable[[tuple[Any, ...]], None]:
    kind, dtype, axes = op.attrs["arith"], _dtype(op, 0), op.attrs["reduce_dims"]
    if kind not in _REDUCE or dtype not in _ARITHMETIC:
        raise _uncovered(op, f"{kind} of {dtype}")
    function = _REDUCE[kind]

    def run(args: tuple[Any, ...]) -> None:
        values = args[0].array()
        for axis in axes:
            values = tree_reduce(values, axis, function)
        _write(args[1], values)

    return run


def _interleave(op: Op) -> Callable[[tuple[Any, ...]], None]:
    if op.attrs["interleave_channel_nums"] != 2:
        raise _uncovered(op, f"of {op.attrs['interleave_channel_nums']} channels")
    return lambda args: _write(args[2], np.stack([args[0].array(), args[1].array()], axis=-1).reshape(args[2].sizes))


def _deinterleave(op: Op) -> Callable[[tuple[Any, ...]], None]:
    count, mode = op.attrs["channel_num"], op.attrs["index_mode"]
    channels = range(count) if mode == "ALL_CHANNELS" else [int(mode.removeprefix("CHANNEL_"))]

    def run(args: tuple[Any, ...]) -> None:
        source = args[0]
        values = source.array().copy()
        if source.strides[-1] == count and source.sizes == args[1].sizes:  # the view already steps over the other channels
            if mode != "CHANNEL_0":
                raise _uncovered(op, f"of a view of every {count}th element, {mode}")
            _write(args[1], values)
            return
        for channel, target in zip(channels, args[1:], strict=True):
            _write(target, values[..., channel::count])

    return run


def _transpose(op: Op) -> Callable[[tuple[Any, ...]], None]:
    order = op.attrs["permutation"]
    return lambda args: _write(args[1], args[0].array().transpose(order).copy())


def _copy(op: Op) -> Callable[[tuple[Any, ...]], None]:
    return lambda args: _write(args[1], _read(args[0]))


_MAKERS: Mapping[str, Callable[[Op], Callable[[tuple[Any, ...]], None]]] = {
    "vadd": _binary(np.add),
    "vsub": _binary(np.subtract),
    "vmul": _binary(np.multiply),
    "vdiv": _binary(np.divide),
    "vmax": _binary(np.maximum),
    "vmin": _binary(np.minimum),
    "vand": _bitwise(np.bitwise_and),
    "vor": _bitwise(np.bitwise_or),
    "vnot": _bitwise(np.invert),
    "vshl": _shift(left=True),
    "vshr": _shift(left=False),
    "vexp": _unary(np.exp),
    "vln": _unary(np.log),
    "vsqrt": _unary(np.sqrt),
    "vrsqrt": _unary(lambda values: 1 / np.sqrt(values)),
    "vrec": _unary(lambda values: 1 / values),
    "vrelu": _unary(lambda values: np.maximum(values, 0)),
    "vabs": _unary(np.abs),
    "vcmp": _compare,
    "vsel": _select,
    "vcast": _cast,
    "vbrc": _broadcast,
    "varange": _arange,
    "vreduce": _reduce,
    "vinterleave": _interleave,
    "vdeinterleave": _deinterleave,
    "vtranspose": _transpose,
    "copy": _copy,
}
