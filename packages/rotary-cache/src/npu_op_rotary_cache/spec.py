"""The cases of the gather and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import gather_cos_sin
from .reference import gather_cos_sin_reference


def _case(name: str, tokens: int, rows: int, width: int, dtype: str = "float32", **fields: Any) -> Case:
    """N: rows of the table, D: its columns. index: 32 or 64 bits. outside: positions beyond both ends of the table, as many as it says."""
    dims = {"T": tokens, "N": rows, "D": width, "index": 64, "outside": 0} | fields.pop("dims", {})
    return Case(name, dims, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"table-{dtype}", 83, 200, 64, dtype)
    yield _case("positions-int32", 83, 200, 64, dims={"index": 32})
    yield _case("outside", 83, 20, 64, dims={"outside": 30})
    yield _case("outside-int32", 83, 20, 64, dims={"index": 32, "outside": 30})
    yield _case("outside-32-bits", 83, 20, 64, dims={"outside": 2**40})
    yield _case("one-token", 1, 200, 64)
    yield _case("one-row", 23, 1, 64)
    yield _case("width-6", 37, 50, 6)
    yield _case("width-192-bfloat16", 37, 50, 192, "bfloat16")
    yield _case("width-1024", 700, 50, 1024)  # large tiles of few tokens
    yield _case("wide", 90, 20, 12_000)  # a row at a time
    yield _case("many-tokens", 2_700, 300, 64)  # large and small tiles, the last of them not full
    yield _case("many-tokens-of-width-6", 2_700, 50, 6)
    yield _case("beyond-a-grid", 65_539, 100, 8)  # case 27
    yield _case("rows-apart", 37, 50, 64, layout="rows-apart")
    yield _case("positions-apart", 37, 50, 64, layout="positions-apart")


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    dims, dtype = case.dims, case.torch_dtype
    low, high = -dims["outside"], dims["N"] + dims["outside"]
    index = torch.int32 if dims["index"] == 32 else torch.int64
    cache = factory.randn(dims["N"], dims["D"] + (16 if case.layout == "rows-apart" else 0), dtype=dtype)[:, : dims["D"]]
    if case.layout == "positions-apart":
        return {"cache": cache, "positions": factory.randint(low, high, dims["T"], 3, dtype=index)[:, 1]}
    return {"cache": cache, "positions": factory.randint(low, high, dims["T"], dtype=index)}


def _traffic(case: Case) -> Traffic:
    dims = case.dims
    return Traffic(forward=dims["T"] * (2 * dims["D"] * case.torch_dtype.itemsize + dims["index"] // 8), backward=0)


def _bench_case(model: Model, tokens: int) -> Case:
    # 64 columns: qk_rope_head_dim of DeepSeek-V3's config.json.
    return _case(f"{model.name}-T{tokens}", tokens, 4096, 64, tags=frozenset({"bench"}))


SPEC = OperatorSpec(
    name="rotary-cache",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=gather_cos_sin,
    reference=gather_cos_sin_reference,
    differentiable=(),
    traffic=_traffic,
    bench_case=_bench_case,
    models=("deepseek_v3",),
    free_dims={"N": range(1, 300), "D": range(2, 200, 2)},
)
