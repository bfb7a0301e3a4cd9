"""The cases of split and RMSNorm and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import fused_split_qk_norm
from .reference import split_qk_norm_reference

_EPS = {"q_eps": 1e-6, "kv_eps": 1e-6}


def _case(name: str, rows: int, widths: tuple[int, int, int], dtype: str = "bfloat16", **fields: Any) -> Case:
    """Q, KV, PE: the widths. weight: 1 = the dtype of the projection, 2 = fp32. bias: 0, of q (1), of kv (2), of both (3)."""
    dims = {"T": rows, "Q": widths[0], "KV": widths[1], "PE": widths[2], "weight": 1, "bias": 0, "tiny": 0} | fields.pop("dims", {})
    return Case(name, dims, dtype, options={**_EPS, **fields.pop("options", {})}, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"deepseek-v3-{dtype}", 41, (1536, 512, 64), dtype)
        yield _case(f"odd-{dtype}", 37, (123, 45, 6), dtype)
    yield _case("glm-5", 83, (2048, 512, 64), options={"q_eps": 1e-5, "kv_eps": 1e-6})
    yield _case("one-token", 1, (1536, 512, 64))
    yield _case("no-rope", 50, (256, 128, 0))  # case 31
    yield _case("row-strided", 41, (256, 128, 64), layout="sliced")  # case 31
    yield _case("two-eps", 41, (256, 128, 64), dims={"tiny": 1}, options={"q_eps": 1e-6, "kv_eps": 1e-2})  # case 32
    yield _case("two-eps-float32", 41, (256, 128, 64), "float32", dims={"tiny": 1}, options={"q_eps": 1e-6, "kv_eps": 1e-2})
    yield _case("both-biases", 41, (256, 128, 64), dims={"bias": 3})
    yield _case("q-bias-float32", 41, (192, 128, 32), "float32", dims={"bias": 1})
    yield _case("kv-bias-weights-float32", 41, (192, 128, 32), dims={"bias": 2, "weight": 2})
    yield _case("parameters-strided", 33, (192, 64, 32), dims={"bias": 3}, layout="parameters-strided")
    yield _case("beyond-a-grid", 65_539, (16, 8, 2))  # cases 27 and 31
    yield _case("wide", 7, (7168, 512, 64))
    yield _case("wide-odd-biases-float32", 5, (5003, 1021, 62), "float32", dims={"bias": 3})


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    dims, dtype = case.dims, case.torch_dtype
    width = dims["Q"] + dims["KV"] + dims["PE"]
    # Tiny inputs: the mean square is of the size of an eps.
    scale = 1e-3 if dims["tiny"] else 1.0
    if case.layout == "sliced":
        fused = factory.randn(dims["T"], width + 32, dtype=dtype, scale=scale)[:, 16 : 16 + width]
    else:
        fused = factory.randn(dims["T"], width, dtype=dtype, scale=scale)
    parameter_dtype = torch.float32 if dims["weight"] == 2 else dtype

    def parameter(size: int, given: int, offset: float) -> torch.Tensor | None:
        if not given:
            return None
        if case.layout == "parameters-strided":
            return factory.randn(size, 3, dtype=parameter_dtype, scale=0.2, offset=offset)[:, 1]
        return factory.randn(size, dtype=parameter_dtype, scale=0.2, offset=offset)

    return {
        "fused_qkv_a": fused,
        "q_weight": parameter(dims["Q"], 1, 1.0),
        "kv_weight": parameter(dims["KV"], 1, 1.0),
        "q_lora_rank": dims["Q"],
        "kv_lora_rank": dims["KV"],
        "qk_rope_dim": dims["PE"],
        "q_bias": parameter(dims["Q"], dims["bias"] & 1, 0.0),
        "kv_bias": parameter(dims["KV"], dims["bias"] & 2, 0.0),
    }


def _traffic(case: Case) -> Traffic:
    dims, itemsize = case.dims, case.torch_dtype.itemsize
    parameters = dims["Q"] * (1 + (dims["bias"] & 1)) + dims["KV"] * (1 + dims["bias"] // 2)
    rows = 2 * dims["T"] * (dims["Q"] + dims["KV"] + dims["PE"]) * itemsize
    return Traffic(forward=rows + parameters * (4 if dims["weight"] == 2 else itemsize), backward=0)


def _bench_case(model: Model, tokens: int) -> Case:
    # q_lora_rank, kv_lora_rank and qk_rope_head_dim of DeepSeek-V3's config.json.
    return _case(f"{model.name}-T{tokens}", tokens, (1536, 512, 64), tags=frozenset({"bench"}))


SPEC = OperatorSpec(
    name="split-qk-norm",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=fused_split_qk_norm,
    reference=split_qk_norm_reference,
    differentiable=(),
    traffic=_traffic,
    bench_case=_bench_case,
    models=("deepseek_v3",),
    free_dims={"Q": range(1, 3000), "KV": range(1, 1000), "PE": range(130)},
)
