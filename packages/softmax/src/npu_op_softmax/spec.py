"""The cases of softmax and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import softmax
from .reference import softmax_reference


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    return Case(name, {"T": rows, "N": width}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        # bf16 arithmetic at these two widths gave row sums of 0.997 elsewhere.
        yield _case(f"width-1000-{dtype}", 64, 1000, dtype)
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
    yield _case("width-4096", 64, 4096)
    yield _case("width-4096-float32", 41, 4096, "float32")
    yield _case("wide-16384-float32", 5, 16384, "float32")
    yield _case("wide-odd-40001", 3, 40001)
    yield _case("width-1", 50, 1)
    yield _case("one-row", 1, 256)
    yield _case("heads-transposed", 12, 128, layout="transposed")
    yield _case("sliced", 64, 512, layout="sliced")
    yield _case("sliced-twice", 64, 512, layout="sliced-twice")
    yield _case("first-dim", 64, 96, layout="first-dim", options={"dim": 0})
    for width in (1024, 3584, 5120, 7168, 16384, 32768, 131072):
        yield _case(f"bench-width-{width}", 4096, width, tags=frozenset({"bench"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["N"], case.torch_dtype
    if case.layout == "first-dim":
        return {"x": factory.randn(width, rows, dtype=dtype)}
    return {"x": rows_in_layout(factory, case.layout, rows, width, dtype=dtype)}


def _traffic(case: Case) -> Traffic:
    tensor = case.dims["T"] * case.dims["N"] * case.torch_dtype.itemsize
    return Traffic(forward=2 * tensor, backward=3 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.hidden_size, tags=frozenset({"bench"}))


def _liger(x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


SPEC = OperatorSpec(
    name="softmax",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=softmax,
    reference=softmax_reference,
    differentiable=("x",),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
    free_dims={"N": range(1, 30000)},
)
