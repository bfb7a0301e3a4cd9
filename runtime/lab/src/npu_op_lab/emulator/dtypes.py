"""Element types of the IR as NumPy types, scalar rounding, and exact conversions in the hardware's rounding modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# i1 is bit-packed in UB (one bit per element) and has no NumPy type: `memory` unpacks it to bool.
NUMPY: Mapping[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
}
BITS: Mapping[str, int] = {"i1": 1, **{name: 8 * dtype.itemsize for name, dtype in NUMPY.items() if name != "i1"}}

FLOATS = ("f16", "bf16", "f32")


def round_scalar(dtype: str) -> Callable[[Any], float]:
    """Rounds a Python float to `dtype`, nearest even; double arithmetic followed by it is IEEE arithmetic in `dtype`."""
    scalar = NUMPY[dtype].type
    return lambda value: float(scalar(value))


def to_float(values: Array, dtype: str, mode: str) -> Array:
    """Convert to a floating type; a floating type to itself rounds to integers, in every mode (so tl.floor is made).

    fp32 -> fp16/bf16 and int -> float round as `mode` says: "rint" to nearest even, "trunc" towards zero, "floor", "ceil",
    "round" to nearest away from zero, "odd" (von Neumann: an inexact result gets an odd last bit). fp32 -> fp16 overflows to
    infinity, as the instruction does without its saturation mode.

    Raises:
        NotImplementedError: an inexact conversion in a mode other than "rint" between types where only "rint" was seen.
    """
    target = NUMPY[dtype]
    if values.dtype == target:
        integral: Array = _ROUND[mode](values.astype(np.float64)).astype(target)
        return integral
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = values.astype(target)
    if mode == "rint" or _exact(values.dtype, target):
        return nearest
    if values.dtype != np.float32:
        raise NotImplementedError(f"conversion {values.dtype} -> {dtype} with rounding mode {mode} is not covered by the emulator")
    return _directed(values, nearest, mode)


def to_int(values: Array, dtype: str, mode: str) -> Array:
    """Convert floating values to an integer type: round as `mode` says, saturate at the type's limits, NaN to 0 (vconv of dav-c220)."""
    target = NUMPY[dtype]
    wide = values.astype(np.float64)
    rounded = _ROUND[mode](wide)
    limits = np.iinfo(target)
    # 2^63 is not a float64 short of overflow: compare in float64 and let the integer limits answer.
    with np.errstate(invalid="ignore"):
        result: Array = np.where(np.isnan(rounded), 0, rounded).clip(limits.min, limits.max).astype(target)
    result[rounded >= limits.max] = limits.max
    return result


def _away(values: Array) -> Array:
    away: Array = np.copysign(np.floor(np.abs(values) + 0.5), values)
    return away


def _odd(values: Array) -> Array:
    low = np.trunc(values)
    return np.where((low != values) & (low % 2 == 0), low + np.sign(values), low)


_ROUND: Mapping[str, Callable[[Array], Array]] = {
    "rint": np.rint,
    "round": _away,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "odd": _odd,
}


def _exact(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    if source == np.bool_:
        return True
    if source.kind in "iu":
        return 8 * source.itemsize <= {2: 11 if target == np.float16 else 8, 4: 24}[target.itemsize]
    return target == np.float32


def _directed(values: Array, nearest: Array, mode: str) -> Array:
    """fp32 -> a 16-bit float, in a directed mode: the nearest value, moved by one step where it lies on the wrong side."""
    if mode not in _ROUND:
        raise NotImplementedError(f"rounding mode {mode} is not covered by the emulator")
    bits = nearest.view(np.int16).copy()
    back = nearest.astype(np.float32)
    finite = np.isfinite(values) & (back != values)
    larger = np.abs(back) > np.abs(values)  # in magnitude: the bit pattern minus one is the neighbour towards zero
    negative = np.signbit(values)
    low = bits - (finite & larger)  # truncated magnitude
    match mode:
        case "trunc":
            bits = low
        case "floor":
            bits = low + (finite & negative)
        case "ceil":
            bits = low + (finite & ~negative)
        case "odd":
            bits = low | finite
        case "round":
            middle = (low.view(nearest.dtype).astype(np.float64) + (low + 1).astype(np.int16).view(nearest.dtype).astype(np.float64)) / 2
            bits = low + (finite & (np.abs(values.astype(np.float64)) >= np.abs(middle)))
    return bits.astype(np.int16).view(nearest.dtype)
