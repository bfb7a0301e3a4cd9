"""The cases of the input of multi-token prediction and what the lab needs to derive its tests and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import fused_mtp_input
from .reference import mtp_input_reference

_EPS = {"enorm_eps": 1e-6, "hnorm_eps": 1e-5}


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    """weight: 1 = the dtype of the states, 2 = fp32. rotation: 1 for one."""
    dims = {"T": rows, "H": width, "weight": 1, "rotation": 0, "tiny": 0} | fields.pop("dims", {})
    return Case(name, dims, dtype, options={**_EPS, **fields.pop("options", {})}, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"plain-{dtype}", 41, 512, dtype)
        yield _case(f"odd-{dtype}", 37, 123, dtype)
    yield _case("deepseek-v3", 23, 7168)
    yield _case("glm-5", 23, 6144)
    yield _case("hidden-5120", 23, 5120)
    yield _case("one-token", 1, 7168)
    yield _case("beyond-a-grid", 65_539, 16)  # case 27
    yield _case("two-eps", 41, 512, dims={"tiny": 1}, options={"enorm_eps": 1e-6, "hnorm_eps": 1e-2})  # as case 32
    yield _case("rotation", 41, 256, dims={"rotation": 1}, options={"convention": "h @ R"})
    yield _case("rotation-transposed", 41, 256, dims={"rotation": 1}, options={"convention": "h @ R.T"})
    yield _case("rotation-float32", 41, 192, "float32", dims={"rotation": 1}, options={"convention": "h @ R"})
    yield _case("weights-float32", 41, 512, dims={"weight": 2})
    yield _case("weights-strided", 33, 192, layout="weights-strided")
    yield _case("sliced", 41, 512, layout="sliced")
    yield _case("wide", 6, 16384)
    yield _case("wide-odd-float32", 5, 10001, "float32")


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["H"], case.torch_dtype
    # Tiny states: the mean square is of the size of an eps.
    scale = 1e-3 if case.dims["tiny"] else 1.0
    weight_dtype = torch.float32 if case.dims["weight"] == 2 else dtype

    def states() -> torch.Tensor:
        if case.layout == "sliced":
            return factory.randn(rows, width + 32, dtype=dtype, scale=scale)[:, 16:-16]
        return factory.randn(rows, width, dtype=dtype, scale=scale)

    def weight() -> torch.Tensor:
        if case.layout == "weights-strided":
            return factory.randn(width, 3, dtype=weight_dtype, scale=0.2, offset=1.0)[:, 1]
        return factory.randn(width, dtype=weight_dtype, scale=0.2, offset=1.0)

    inputs: dict[str, Any] = {"embedding": states(), "hidden": states(), "enorm_weight": weight(), "hnorm_weight": weight()}
    # About as long as an orthogonal one, and not symmetric.
    return inputs | ({"rotation": factory.randn(width, width, dtype=dtype, scale=width**-0.5)} if case.dims["rotation"] else {})


def _traffic(case: Case) -> Traffic:
    elements, itemsize = case.dims["T"] * case.dims["H"], case.torch_dtype.itemsize
    weights = 2 * case.dims["H"] * (4 if case.dims["weight"] == 2 else itemsize)
    return Traffic(forward=4 * elements * itemsize + weights, backward=0)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.hidden_size, tags=frozenset({"bench"}))


SPEC = OperatorSpec(
    name="mtp-input",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=fused_mtp_input,
    reference=mtp_input_reference,
    differentiable=(),
    traffic=_traffic,
    bench_case=_bench_case,
    models=("deepseek_v3",),
    free_dims={"H": range(1, 1500)},
)
