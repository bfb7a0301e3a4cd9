"""The cases of SwiGLU and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import swiglu, swiglu_packed
from .reference import swiglu_packed_reference, swiglu_reference

_SCALED = {"gate_multiplier": 0.75, "down_multiplier": 1.5}


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    return Case(name, {"T": rows, "I": width}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"llama-{dtype}", 32, 1376, dtype)
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
        yield _case(f"packed-{dtype}", 33, 344, dtype, layout="packed")
    # case 29: a float argument stays fp32
    yield _case("multipliers-float16", 16, 344, "float16", options=_SCALED)
    yield _case("multipliers-bfloat16", 16, 344, options=_SCALED)
    yield _case("packed-odd-width", 37, 123, layout="packed")
    yield _case("packed-multipliers", 16, 512, layout="packed", options=_SCALED)
    yield _case("packed-wide", 3, 14336, layout="packed")
    yield _case("inplace-backward", 16, 1376, options={"inplace_backward": True}, tags=frozenset({"values", "inplace"}))
    yield _case("one-row", 1, 1376)  # case 26
    yield _case("width-1", 50, 1)
    yield _case("many-tiles", 300, 1376)  # case 26: more tiles than cores, the last one short
    yield _case("transposed", 6, 64, layout="transposed")
    yield _case("sliced", 64, 512, layout="sliced")
    yield _case("sliced-twice", 64, 96, layout="sliced-twice")


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["I"], case.torch_dtype

    def one() -> torch.Tensor:
        # Wide enough for both tails of silu.
        return rows_in_layout(factory, case.layout, rows, width, dtype=dtype, scale=4.0)

    if case.layout == "packed":
        return {"x": factory.randn(rows, 2 * width, dtype=dtype, scale=4.0)}
    return {"gate": one(), "up": one()}


def _function(x: torch.Tensor | None = None, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0, **call: Any) -> torch.Tensor:
    call |= {"gate_multiplier": gate_multiplier, "down_multiplier": down_multiplier}
    return swiglu(**call) if x is None else swiglu_packed(x, **call)


def _reference(x: torch.Tensor | None = None, *, inplace_backward: bool = False, **call: Any) -> torch.Tensor:
    return swiglu_reference(**call) if x is None else swiglu_packed_reference(x, **call)


def _traffic(case: Case) -> Traffic:
    tensor = case.dims["T"] * case.dims["I"] * case.torch_dtype.itemsize
    return Traffic(forward=3 * tensor, backward=5 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.intermediate_size, tags=frozenset({"bench"}))


def _liger(gate: torch.Tensor, up: torch.Tensor, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> torch.Tensor:
    from liger_kernel.ops import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(gate, up, gate_multiplier, down_multiplier)


def _vendor(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return swiglu_packed(x, implementation="vendor", **options)


SPEC = OperatorSpec(
    name="swiglu",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=_function,
    reference=_reference,
    differentiable=("gate", "up", "x"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger, "vendor": _vendor},
    free_dims={"I": range(1, 20000)},
)
