"""The cases of Dynamic Tanh and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import dyt
from .reference import dyt_reference


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", *, beta: int = 1, wide_parameters: int = 0, **fields: Any) -> Case:
    return Case(name, {"T": rows, "H": width, "beta": beta, "wide_parameters": wide_parameters}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"width-1024-{dtype}", 48, 1024, dtype)
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
        yield _case(f"no-beta-{dtype}", 33, 512, dtype, beta=0)
    yield _case("parameters-float32", 48, 512, wide_parameters=1)
    yield _case("parameters-float32-no-beta", 48, 512, wide_parameters=1, beta=0)
    yield _case("hidden-4096", 41, 4096, wide_parameters=1)
    yield _case("hidden-3584", 21, 3584)
    yield _case("wide-odd-20001", 3, 20001, "float32")
    yield _case("strips-overlap-5003", 7, 5003)
    yield _case("width-1", 50, 1)
    yield _case("one-row", 1, 2048)
    yield _case("heads-transposed", 12, 128, layout="transposed")
    yield _case("sliced", 64, 512, layout="sliced")
    yield _case("sliced-twice", 64, 512, layout="sliced-twice")
    yield _case("parameters-strided", 33, 192, layout="parameters-strided")
    for width in (5120, 7168, 16384, 131072):
        yield _case(f"bench-width-{width}", 4096, width, wide_parameters=1, tags=frozenset({"bench"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["H"], case.torch_dtype
    x = rows_in_layout(factory, case.layout, rows, width, dtype=dtype, scale=2.0)
    parameters = torch.float32 if case.dims["wide_parameters"] else dtype
    step = 3 if case.layout == "parameters-strided" else 1
    return {
        "x": x,
        "alpha": factory.randn(1, dtype=parameters, scale=0.1, offset=0.5),
        "gamma": factory.randn(step * width, dtype=parameters, scale=0.2, offset=1.0)[::step],
        "beta": factory.randn(step * width, dtype=parameters, scale=0.2)[::step] if case.dims["beta"] else None,
    }


def _traffic(case: Case) -> Traffic:
    itemsize = case.torch_dtype.itemsize
    tensor = case.dims["T"] * case.dims["H"] * itemsize
    column = case.dims["H"] * (4 if case.dims["wide_parameters"] else itemsize)
    return Traffic(forward=2 * tensor + (1 + case.dims["beta"]) * column, backward=3 * tensor + (2 + case.dims["beta"]) * column)


def _bench_case(model: Model, tokens: int) -> Case:
    # Parameters in the dtype of x: Liger rounds the gradient of alpha to that dtype, which the oracle refuses for an fp32 alpha.
    return _case(f"{model.name}-T{tokens}", tokens, model.hidden_size, tags=frozenset({"bench"}))


def _with_beta(beta: int, case: Case) -> Case:
    return replace(case, dims={**case.dims, "beta": beta})


def _liger(x: torch.Tensor, alpha: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None = None) -> torch.Tensor:
    from liger_kernel.ops import LigerDyTFunction

    return LigerDyTFunction.apply(x, alpha, gamma, beta)


SPEC = OperatorSpec(
    name="dyt",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=dyt,
    reference=dyt_reference,
    differentiable=("x", "alpha", "gamma", "beta"),
    traffic=_traffic,
    bench_case=_bench_case,
    bench_variants={"dyt_beta=False": lambda case: _with_beta(0, case), "dyt_beta=True": lambda case: _with_beta(1, case)},
    peers={"liger": _liger},
    free_dims={"H": range(1, 20000)},
)
