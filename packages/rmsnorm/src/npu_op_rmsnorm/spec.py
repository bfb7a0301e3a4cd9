"""The cases of RMSNorm and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import rms_norm
from .reference import rms_norm_reference


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    return Case(name, {"T": rows, "H": width, "weight": fields.pop("weight", 1)}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"llama-{dtype}", 64, 1024, dtype)
        yield _case(f"odd-width-{dtype}", 37, 123, dtype)
        yield _case(f"gemma-{dtype}", 33, 512, dtype, options={"casting": "gemma", "offset": 1.0})
        yield _case(f"none-{dtype}", 33, 512, dtype, options={"casting": "none"})
    yield _case("hidden-4096", 64, 4096)
    yield _case("hidden-4096-float32", 64, 4096, "float32")
    yield _case("hidden-3584", 41, 3584)
    yield _case("hidden-5120", 41, 5120)
    yield _case("hidden-7168", 41, 7168)
    yield _case("wide-16384", 6, 16384)
    yield _case("wide-16384-none", 6, 16384, options={"casting": "none"})
    yield _case("wide-odd-20001", 5, 20001, "float32")
    yield _case("width-1", 50, 1)
    yield _case("one-row", 1, 2048)
    yield _case("no-weight", 64, 1024, weight=0)
    yield _case("weight-float32", 64, 1024, weight=2)
    yield _case("weight-strided", 33, 192, layout="weight-strided")
    yield _case("eps-large", 64, 256, options={"eps": 1.0})
    yield _case("head-dim-transposed", 12, 128, layout="transposed")
    yield _case("sliced", 64, 512, layout="sliced")
    yield _case("sliced-twice", 64, 512, layout="sliced-twice")


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["H"], case.torch_dtype
    x = rows_in_layout(factory, case.layout, rows, width, dtype=dtype)
    # weight: 0 = none, 1 = the dtype of x, 2 = fp32
    weight_dtype = {0: None, 1: dtype, 2: torch.float32}[case.dims["weight"]]
    weight = None if weight_dtype is None else factory.randn(width, dtype=weight_dtype, scale=0.2, offset=1.0)
    if case.layout == "weight-strided":
        weight = factory.randn(width, 3, dtype=dtype, scale=0.2, offset=1.0)[:, 1]
    return {"x": x, "weight": weight}


def _traffic(case: Case) -> Traffic:
    elements, itemsize = case.dims["T"] * case.dims["H"], case.torch_dtype.itemsize
    weight = 0 if case.dims["weight"] == 0 else case.dims["H"] * (4 if case.dims["weight"] == 2 else itemsize)
    return Traffic(forward=2 * elements * itemsize + weight, backward=3 * elements * itemsize + 2 * weight)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.hidden_size, tags=frozenset({"bench"}))


def _liger(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama") -> torch.Tensor:
    from liger_kernel.ops import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, offset, casting, False)


def _vendor(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6, **options: Any) -> torch.Tensor:
    return rms_norm(x, weight, eps, implementation="vendor", **options)


SPEC = OperatorSpec(
    name="rmsnorm",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=rms_norm,
    reference=rms_norm_reference,
    differentiable=("x", "weight"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger, "vendor": _vendor},
    free_dims={"H": range(1, 20000)},
)
