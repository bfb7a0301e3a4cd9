"""Scalar operations of the IR as Python expressions, and the helpers that those expressions call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .dtypes import BITS, FLOATS, NUMPY
from .findings import UndefinedBehavior
from .program import Op


class Unknown:
    """A number that a kernel reads from UB while only its time is modelled: any arithmetic with it stays unknown.

    As a branch's condition it is taken to be true: the time of a data-dependent branch is that of the branch taken.
    """

    def _same(self, *_: object) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __rand__ = __or__ = __ror__ = _same
    __xor__ = __rxor__ = __neg__ = __lshift__ = __rshift__ = __lt__ = __le__ = __gt__ = __ge__ = _same
    __eq__ = __ne__ = _same  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __index__(self) -> int:
        raise NotImplementedError("a loop bound, size or address depends on data that the kernel computes: emulate it with values=True")


UNKNOWN = Unknown()


class Undefined(Unknown):
    """The result of an operation that MLIR leaves undefined: it may be computed, hoisted out of a loop that does not run, but not used."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __bool__(self) -> bool:
        raise UndefinedBehavior(self._message)

    def __index__(self) -> int:
        raise UndefinedBehavior(self._message)


def known(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers that answers with the first that is unknown or undefined, if one is."""

    def call(*args: Any) -> Any:
        for arg in args:
            if isinstance(arg, Unknown):
                return arg
        return function(*args)

    return call


def _quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


def _divided(function: Callable[[int, int], int]) -> Callable[..., Any]:
    """The division with a third argument, which says whose it is, and no result where it divides by zero."""
    return known(lambda a, b, origin="": function(a, b) if b else Undefined(f"{origin} divides by zero"))


def _shifted(function: Callable[[int, int], int]) -> Callable[..., Any]:
    """The shift of a number of so many bits, with a fourth argument, which says whose it is."""

    def shift(a: int, b: int, bits: int, origin: str) -> Any:
        return function(a, b) if 0 <= b < bits else Undefined(f"{origin} shifts {bits} bits by {b}")

    return known(shift)


def _decided(condition: Any, origin: str) -> Any:
    """The condition of a while loop, which must be known: taken to be true, the loop would not end."""
    if condition is UNKNOWN:
        raise NotImplementedError(f"{origin}: the loop's condition depends on data that the kernel computes: emulate it with values=True")
    return condition


def _divide(a: float, b: float) -> float:
    return float(np.float64(a) / np.float64(b))


def _maximum(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _minimum(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


def _to_int(value: float, bits: int) -> int:
    if math.isnan(value):
        return 0
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return max(low, min(high, int(value))) if math.isfinite(value) else (high if value > 0 else low)


def _bitcast(value: float | int, source: str, target: str) -> float | int:
    result = np.array(value, NUMPY[source]).view(NUMPY[target]).item()
    return float(result) if target in FLOATS else int(result)


def _rounder(dtype: str) -> Callable[[Any], Any]:
    scalar = NUMPY[dtype].type
    return known(lambda value: float(scalar(value)))


# What the generated code may call.
HELPERS: dict[str, Any] = {
    "quotient": _divided(_quotient),
    "remainder": _divided(_remainder),
    "floor_quotient": _divided(lambda a, b: a // b),
    "ceil_quotient": _divided(lambda a, b: -(-a // b)),
    "shift_left": _shifted(lambda a, b: a << b),
    "shift_right": _shifted(lambda a, b: a >> b),
    "decided": _decided,
    "lowest": known(min),
    "highest": known(max),
    "divide": known(_divide),
    "maximum": known(_maximum),
    "minimum": known(_minimum),
    "maxnum": known(lambda a, b: float(np.fmax(a, b))),
    "minnum": known(lambda a, b: float(np.fmin(a, b))),
    "sqrt": known(lambda a: float(np.sqrt(np.float64(a)))),
    "exp": known(lambda a: float(np.exp(np.float64(a)))),
    "log": known(lambda a: float(np.log(np.float64(a)))),
    "absolute": known(abs),
    "floor": known(lambda a: float(np.floor(a))),
    "ceil": known(lambda a: float(np.ceil(a))),
    "to_int": known(_to_int),
    "bitcast": known(_bitcast),
    "ordered": known(lambda a, b: not (math.isnan(a) or math.isnan(b))),
    **{f"round_{dtype}": _rounder(dtype) for dtype in FLOATS},
}

_COMPARE_INT = ("=={}", "!={}", "<{}", "<={}", ">{}", ">={}", "<{}", "<={}", ">{}", ">={}")  # arith.cmpi predicates; the last four unsigned
# arith.cmpf: false, oeq, ogt, oge, olt, ole, one, ord, ueq, ugt, uge, ult, ule, une, uno, true
_COMPARE_FLOAT = (None, "==", ">", ">=", "<", "<=", "!=", None, "==", ">", ">=", "<", "<=", "!=", None, None)
_UNORDERED = range(8, 15)


def width(type_: Any) -> int:
    """Bits of an integer type; `index` is 64 wide."""
    return 64 if type_ == "index" else BITS[type_]


def _wrap(expression: str, type_: Any) -> str:
    """Two's complement overflow. `index` cannot overflow in an address that memory holds, so it is left alone."""
    bits = width(type_)
    if bits == 1:
        return f"({expression})&1"
    if type_ == "index":
        return f"({expression})"
    half, mask = 1 << bits - 1, (1 << bits) - 1
    return f"(({expression})+{half}&{mask})-{half}"


def _unsigned(expression: str, type_: Any) -> str:
    return f"(({expression})&{(1 << width(type_)) - 1})"


def _signed_bit(expression: str, type_: Any) -> str:
    """An i1 as a signed number is 0 or -1."""
    return f"-(({expression})&1)" if type_ == "i1" else expression


def _integer(template: str) -> Callable[[Op, list[str]], str]:
    return lambda op, args: _wrap(template.format(*args), op.results[0].type)


def origin(op: Op) -> str:
    """Who an operation is, as a literal in the generated code; it is no part of what the operation computes."""
    return repr(f"{op.name} at {op.where or 'an unknown line'}")


def _division(function: str, unsigned: bool = False) -> Callable[[Op, list[str]], str]:
    def make(op: Op, args: list[str]) -> str:
        type_ = op.results[0].type
        a, b = (_unsigned(arg, type_) for arg in args) if unsigned else args
        rest = "" if op.operands[1].constant else f",{origin(op)}"
        return _wrap(f"{function}({a},{b}{rest})", type_)

    return make


def _shift(function: str, sign: str) -> Callable[[Op, list[str]], str]:
    def make(op: Op, args: list[str]) -> str:
        type_, count = op.results[0].type, op.operands[1].constant
        if count is not None and 0 <= count < width(type_):
            return _wrap(f"({args[0]}){sign}({args[1]})", type_)
        return _wrap(f"{function}({args[0]},{args[1]},{width(type_)},{origin(op)})", type_)

    return make


def _float(template: str) -> Callable[[Op, list[str]], str]:
    return lambda op, args: f"round_{op.results[0].type}({template.format(*args)})"


def _cmpi(op: Op, args: list[str]) -> str:
    predicate = op.attrs["predicate"]
    a, b = args
    if predicate >= 6:
        a, b = (_unsigned(arg, op.operands[0].type) for arg in args)
    return f"({a})" + _COMPARE_INT[predicate].format(f"({b})")


def _cmpf(op: Op, args: list[str]) -> str:
    predicate = op.attrs["predicate"]
    a, b = args
    if predicate in (0, 15):
        return str(predicate == 15)
    if predicate in (7, 14):
        return f"ordered({a},{b})" if predicate == 7 else f"(ordered({a},{b}))^True"
    compared = f"({a}{_COMPARE_FLOAT[predicate]}{b})"
    if predicate in _UNORDERED:
        return f"{compared}|((ordered({a},{b}))^True)"
    return f"{compared}&ordered({a},{b})"


def _convert_index(op: Op, args: list[str]) -> str:
    value, type_ = _signed_bit(args[0], op.operands[0].type), op.results[0].type
    return f"({value})" if width(type_) == 64 else _wrap(value, type_)  # nothing is lost in 64 bits, and nothing is charged


# Operation -> the expression of its result.
EXPRESSIONS: Mapping[str, Callable[[Op, list[str]], str]] = {
    "arith.addi": _integer("{}+{}"),
    "arith.subi": _integer("{}-{}"),
    "arith.muli": _integer("{}*{}"),
    "arith.divsi": _division("quotient"),
    "arith.remsi": _division("remainder"),
    "arith.divui": _division("quotient", unsigned=True),
    "arith.remui": _division("remainder", unsigned=True),
    "arith.floordivsi": _division("floor_quotient"),
    "arith.ceildivsi": _division("ceil_quotient"),
    "arith.minsi": _integer("lowest({},{})"),
    "arith.maxsi": _integer("highest({},{})"),
    "arith.andi": _integer("({})&({})"),
    "arith.ori": _integer("({})|({})"),
    "arith.xori": _integer("({})^({})"),
    "arith.shli": _shift("shift_left", "<<"),
    "arith.shrsi": _shift("shift_right", ">>"),
    "arith.cmpi": _cmpi,
    "arith.cmpf": _cmpf,
    "arith.select": lambda op, args: "({1} if {0} else {2})".format(*args),
    "arith.index_cast": _convert_index,
    "arith.index_castui": lambda op, args: _wrap(_unsigned(args[0], op.operands[0].type), op.results[0].type),
    "arith.trunci": lambda op, args: _wrap(args[0], op.results[0].type),
    "arith.extsi": _convert_index,
    "arith.extui": lambda op, args: _unsigned(args[0], op.operands[0].type),
    "arith.addf": _float("{}+{}"),
    "arith.subf": _float("{}-{}"),
    "arith.mulf": _float("{}*{}"),
    "arith.divf": _float("divide({},{})"),
    "arith.negf": lambda op, args: f"-({args[0]})",
    "arith.maximumf": _float("maximum({},{})"),
    "arith.minimumf": _float("minimum({},{})"),
    "arith.maxnumf": _float("maxnum({},{})"),
    "arith.minnumf": _float("minnum({},{})"),
    "arith.sitofp": lambda op, args: f"round_{op.results[0].type}({_signed_bit(args[0], op.operands[0].type)})",
    "arith.uitofp": lambda op, args: f"round_{op.results[0].type}({_unsigned(args[0], op.operands[0].type)})",
    "arith.fptosi": lambda op, args: f"to_int({args[0]},{width(op.results[0].type)})",
    "arith.extf": lambda op, args: args[0],
    "arith.truncf": _float("{}"),
    "arith.bitcast": lambda op, args: f"bitcast({args[0]},{op.operands[0].type!r},{op.results[0].type!r})",
    "math.sqrt": _float("sqrt({})"),
    "math.exp": _float("exp({})"),
    "math.log": _float("log({})"),
    "math.absf": _float("absolute({})"),
    "math.floor": _float("floor({})"),
    "math.ceil": _float("ceil({})"),
}
