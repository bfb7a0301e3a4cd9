"""The cases of GEGLU and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.gated_mlp import LAYOUT as MLP
from npu_op_runtime.gated_mlp import WEIGHTS, call_mlp, judged_mlp, mlp_formula, mlp_inputs, mlp_traffic, whole_mlp
from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .module import GEGLUMLP
from .op import geglu, geglu_packed
from .reference import geglu_packed_reference, geglu_reference


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", hidden: int = 0, **fields: Any) -> Case:
    """hidden: of the MLP around it, which is run with the layout "mlp" only."""
    return Case(name, {"T": rows, "I": width, "H": hidden}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"tanh-{dtype}", 64, 1376, dtype)
        yield _case(f"erf-{dtype}", 64, 1376, dtype, options={"approximate": "none"})
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
        yield _case(f"packed-{dtype}", 33, 688, dtype, layout="packed")
    yield _case("packed-odd-width", 37, 123, layout="packed")
    yield _case("packed-erf", 16, 512, layout="packed", options={"approximate": "none"})
    yield _case("packed-wide", 5, 14336, layout="packed")
    yield _case("inplace-backward", 64, 1376, options={"inplace_backward": True}, tags=frozenset({"values", "inplace"}))
    yield _case("one-row", 1, 1376)
    yield _case("width-1", 50, 1)
    yield _case("many-tiles", 600, 1376)
    yield _case("transposed", 6, 64, layout="transposed")
    yield _case("sliced", 64, 512, layout="sliced")
    yield _case("sliced-twice", 64, 96, layout="sliced-twice")


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["I"], case.torch_dtype

    def one() -> torch.Tensor:
        # Wide enough for both tails of gelu.
        return rows_in_layout(factory, case.layout, rows, width, dtype=dtype, scale=2.0)

    if case.layout == MLP:
        return mlp_inputs(case, factory)
    if case.layout == "packed":
        return {"x": factory.randn(rows, 2 * width, dtype=dtype, scale=2.0)}
    return {"gate": one(), "up": one()}


def _function(x: torch.Tensor | None = None, **call: Any) -> torch.Tensor:
    if x is not None and "gate_weight" in call:
        return call_mlp(GEGLUMLP, x, **call)
    return geglu(**call) if x is None else geglu_packed(x, **call)


def _reference(x: torch.Tensor | None = None, *, inplace_backward: bool = False, **call: Any) -> torch.Tensor:
    if x is not None and "gate_weight" in call:
        return mlp_formula(geglu_reference, x, **call)
    return geglu_reference(**call) if x is None else geglu_packed_reference(x, **call)


def _traffic(case: Case) -> Traffic:
    if case.layout == MLP:
        return mlp_traffic(case)
    tensor = case.dims["T"] * case.dims["I"] * case.torch_dtype.itemsize
    return Traffic(forward=3 * tensor, backward=5 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.intermediate_size, hidden=model.hidden_size, tags=frozenset({"bench"}))


def _liger(x: torch.Tensor | None = None, **call: Any) -> torch.Tensor:
    from liger_kernel.ops import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(*call.values()) if x is None else mlp_formula(LigerGELUMulFunction.apply, x, **call)


def _vendor(**call: Any) -> torch.Tensor:
    if "gate_weight" in call:
        raise NotImplementedError("torch_npu.npu_geglu takes gate | up in one tensor, the MLP of Gemma has two projections")
    return _function(**call, implementation="vendor")


SPEC = OperatorSpec(
    name="geglu",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=_function,
    reference=_reference,
    differentiable=("gate", "up", "x", *WEIGHTS),
    traffic=_traffic,
    bench_case=_bench_case,
    bench_variants={"geglu": lambda case: case, "geglu_mlp": lambda case: whole_mlp(case, GEGLUMLP)},
    judged=judged_mlp,
    peers={"liger": _liger, "vendor": _vendor},
    free_dims={"I": range(1, 20000)},
)
