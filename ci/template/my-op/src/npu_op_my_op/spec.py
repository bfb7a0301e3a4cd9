"""The cases of MyOp and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import my_op
from .reference import my_op_reference


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    return Case(name, {"T": rows, "N": width}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
    yield _case("one-row", 1, 1000)
    yield _case("width-1", 50, 1)
    # More tiles than cores, the last one short.
    yield _case("many-tiles", 300, 1376)
    yield _case("transposed", 6, 64, layout="transposed")
    yield _case("sliced", 64, 96, layout="sliced")
    yield _case("sliced-twice", 64, 96, layout="sliced-twice")


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, torch.Tensor]:
    # Wide enough for both tails.
    return {"x": rows_in_layout(factory, case.layout, case.dims["T"], case.dims["N"], dtype=case.torch_dtype, scale=4.0)}


def _traffic(case: Case) -> Traffic:
    tensor = case.dims["T"] * case.dims["N"] * case.torch_dtype.itemsize
    return Traffic(forward=2 * tensor, backward=3 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.hidden_size, tags=frozenset({"bench"}))


SPEC = OperatorSpec(
    name="my-op",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=my_op,
    reference=my_op_reference,
    differentiable=("x",),
    traffic=_traffic,
    bench_case=_bench_case,
    free_dims={"N": range(1, 20000)},
)
