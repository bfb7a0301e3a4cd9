"""The cases of PolyNorm and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import poly_norm
from .reference import poly_norm_reference


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", *, bias: int = 1, wide_parameters: int = 0, **fields: Any) -> Case:
    return Case(name, {"T": rows, "H": width, "bias": bias, "wide_parameters": wide_parameters}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"width-1024-{dtype}", 48, 1024, dtype)
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
    # Every program stored dweight and dbias elsewhere, and the last one won.
    yield _case("width-4096-float32", 64, 4096, "float32")
    yield _case("parameters-float32", 48, 512, wide_parameters=1)
    yield _case("no-bias", 48, 512, bias=0)
    yield _case("hidden-4096", 41, 4096, wide_parameters=1)
    yield _case("wide-odd-20001", 3, 20001, "float32")
    yield _case("wide-16384", 5, 16384)
    yield _case("width-1", 50, 1)
    yield _case("one-row", 1, 2048)
    yield _case("eps-large", 64, 256, options={"eps": 1.0})
    yield _case("heads-transposed", 12, 128, layout="transposed")
    yield _case("sliced", 64, 512, layout="sliced")
    yield _case("sliced-twice", 64, 512, layout="sliced-twice")
    yield _case("parameters-strided", 33, 192, layout="parameters-strided")
    for width in (3072, 3584, 5120, 7168):
        yield _case(f"bench-width-{width}", 4096, width, wide_parameters=1, tags=frozenset({"bench"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["H"], case.torch_dtype
    parameters = torch.float32 if case.dims["wide_parameters"] else dtype
    step = 3 if case.layout == "parameters-strided" else 1
    return {
        "x": rows_in_layout(factory, case.layout, rows, width, dtype=dtype),
        "weight": factory.randn(3 * step, dtype=parameters, scale=0.1, offset=0.5)[::step],
        "bias": factory.randn(1, dtype=parameters) if case.dims["bias"] else None,
    }


def _traffic(case: Case) -> Traffic:
    tensor = case.dims["T"] * case.dims["H"] * case.torch_dtype.itemsize
    return Traffic(forward=2 * tensor, backward=3 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.hidden_size, wide_parameters=1, tags=frozenset({"bench"}))


def _liger(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    from liger_kernel.ops import LigerPolyNormFunction

    return LigerPolyNormFunction.apply(x, weight, bias.reshape(()), eps, False)  # its gradient of the bias has no dimension


SPEC = OperatorSpec(
    name="polynorm",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=poly_norm,
    reference=poly_norm_reference,
    differentiable=("x", "weight", "bias"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
    free_dims={"H": range(1, 20000)},
)
