"""The cases of SwiGLU and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.gated_mlp import LAYOUT as MLP
from npu_op_runtime.gated_mlp import WEIGHTS, call_mlp, judged_mlp, mlp_formula, mlp_inputs, mlp_traffic, whole_mlp
from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .module import SwiGLUMLP
from .op import swiglu, swiglu_packed
from .reference import swiglu_packed_reference, swiglu_reference

_SCALED = {"gate_multiplier": 0.75, "down_multiplier": 1.5}


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", hidden: int = 0, **fields: Any) -> Case:
    """hidden: of the MLP around it, which is run with the layout "mlp" only."""
    return Case(name, {"T": rows, "I": width, "H": hidden}, dtype, **fields)


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

    if case.layout == MLP:
        return mlp_inputs(case, factory)
    if case.layout == "packed":
        return {"x": factory.randn(rows, 2 * width, dtype=dtype, scale=4.0)}
    return {"gate": one(), "up": one()}


def _function(x: torch.Tensor | None = None, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0, **call: Any) -> torch.Tensor:
    if x is not None and "gate_weight" in call:
        return call_mlp(SwiGLUMLP, x, **call)
    call |= {"gate_multiplier": gate_multiplier, "down_multiplier": down_multiplier}
    return swiglu(**call) if x is None else swiglu_packed(x, **call)


def _reference(x: torch.Tensor | None = None, *, inplace_backward: bool = False, **call: Any) -> torch.Tensor:
    if x is not None and "gate_weight" in call:
        return mlp_formula(swiglu_reference, x, **call)
    return swiglu_reference(**call) if x is None else swiglu_packed_reference(x, **call)


def _traffic(case: Case) -> Traffic:
    if case.layout == MLP:
        return mlp_traffic(case)
    tensor = case.dims["T"] * case.dims["I"] * case.torch_dtype.itemsize
    return Traffic(forward=3 * tensor, backward=5 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.intermediate_size, hidden=model.hidden_size, tags=frozenset({"bench"}))


def _liger(x: torch.Tensor | None = None, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0, **call: Any) -> torch.Tensor:
    from liger_kernel.ops import LigerSiLUMulFunction

    def activation(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return LigerSiLUMulFunction.apply(gate, up, gate_multiplier, down_multiplier)

    return activation(**call) if x is None else mlp_formula(activation, x, **call)


def _vendor(x: torch.Tensor, **call: Any) -> torch.Tensor:
    if "gate_weight" in call:
        raise NotImplementedError("torch_npu.npu_swiglu takes gate | up in one tensor, the MLP of Llama has two projections")
    return swiglu_packed(x, implementation="vendor", **call)


SPEC = OperatorSpec(
    name="swiglu",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=_function,
    reference=_reference,
    differentiable=("gate", "up", "x", *WEIGHTS),
    traffic=_traffic,
    bench_case=_bench_case,
    bench_variants={"swiglu": lambda case: case, "swiglu_mlp": lambda case: whole_mlp(case, SwiGLUMLP)},
    judged=judged_mlp,
    peers={"liger": _liger, "vendor": _vendor},
    free_dims={"I": range(1, 20000)},
)
