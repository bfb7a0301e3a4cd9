"""The cases of LayerNorm and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import layer_norm
from .reference import layer_norm_reference


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    # weight, bias: 0 = none, 1 = the dtype of x, 2 = fp32
    given = {"weight": fields.pop("weight", 1), "bias": fields.pop("bias", 1), "mean": fields.pop("mean", 0)}
    return Case(name, {"T": rows, "H": width, **given}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"width-1024-{dtype}", 48, 1024, dtype)
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
    # Masked lanes that entered the variance elsewhere: a mean that is not 0.
    for width in (1000, 1536):
        yield _case(f"mean-3-{width}", 24, width, mean=3)
        yield _case(f"mean-3-{width}-float32", 24, width, "float32", mean=3)
    yield _case("hidden-4096", 41, 4096)
    yield _case("hidden-5120", 9, 5120)
    yield _case("wide-7168", 9, 7168)
    yield _case("wide-16384", 6, 16384)
    yield _case("width-1", 50, 1)
    yield _case("one-row", 1, 2048)
    yield _case("no-bias", 64, 256, bias=0)
    yield _case("no-weight", 64, 256, weight=0)
    yield _case("no-parameters", 64, 256, weight=0, bias=0)
    yield _case("parameters-float32", 64, 256, weight=2, bias=2)
    yield _case("weight-float32", 64, 256, weight=2)
    yield _case("eps-large", 64, 256, options={"eps": 1.0})
    yield _case("heads-transposed", 12, 128, layout="transposed")
    yield _case("sliced", 64, 512, layout="sliced")
    yield _case("sliced-twice", 64, 512, layout="sliced-twice")
    yield _case("sliced-pieces", 24, 1024, layout="sliced")
    yield _case("no-parameters-pieces", 24, 1024, weight=0, bias=0)
    yield _case("parameters-strided", 33, 192, layout="parameters-strided")
    for width in (2048, 3072, 3584, 8192, 65536):
        yield _case(f"bench-width-{width}", 4096, width, tags=frozenset({"bench"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["H"], case.torch_dtype
    x = rows_in_layout(factory, case.layout, rows, width, dtype=dtype, offset=float(case.dims["mean"]))
    dtypes = {0: None, 1: dtype, 2: torch.float32}
    weight_dtype, bias_dtype = dtypes[case.dims["weight"]], dtypes[case.dims["bias"]]
    step = 3 if case.layout == "parameters-strided" else 1
    return {
        "x": x,
        "weight": None if weight_dtype is None else factory.randn(step * width, dtype=weight_dtype, scale=0.2, offset=1.0)[::step],
        "bias": None if bias_dtype is None else factory.randn(step * width, dtype=bias_dtype, scale=0.2)[::step],
    }


def _traffic(case: Case) -> Traffic:
    elements, itemsize = case.dims["T"] * case.dims["H"], case.torch_dtype.itemsize
    weight, bias = (case.dims["H"] * (0, itemsize, 4)[case.dims[name]] for name in ("weight", "bias"))
    return Traffic(forward=2 * elements * itemsize + weight + bias, backward=3 * elements * itemsize + 2 * weight + bias)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.hidden_size, tags=frozenset({"bench"}))


def _liger(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    from liger_kernel.ops import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, eps)


SPEC = OperatorSpec(
    name="layernorm",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=layer_norm,
    reference=layer_norm_reference,
    differentiable=("x", "weight", "bias"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
    free_dims={"H": range(1, 20000)},
)
