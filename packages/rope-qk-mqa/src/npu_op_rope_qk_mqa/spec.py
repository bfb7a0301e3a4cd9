"""The cases of the rotary embedding of latent attention and what the lab needs to derive its tests and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import fused_rope_qk_mqa
from .reference import rope_qk_mqa_reference

_HALF, _INTERLEAVED = {"interleaved": False}, {"interleaved": True}
_INPLACE = frozenset({"values", "inplace"})


def _case(name: str, tokens: int, heads: tuple[int, int], width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    """Q, K: heads; K is 0 for a k without a dimension of heads. R: rotary_dim. angles: 1 for fp32 cos and sin."""
    dims = {"T": tokens, "Q": heads[0], "K": heads[1], "D": width, "R": width, "angles": 0} | fields.pop("dims", {})
    options = {**_HALF, **fields.pop("options", {})}
    return Case(name, dims, dtype, options=options if dims["R"] == width else {**options, "rotary_dim": dims["R"]}, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"half-{dtype}", 37, (8, 1), 64, dtype)
        yield _case(f"interleaved-{dtype}", 37, (8, 1), 64, dtype, options=_INTERLEAVED)
    yield _case("angles-float32", 29, (8, 1), 64, dims={"angles": 1})
    yield _case("angles-float32-interleaved", 29, (8, 1), 64, dims={"angles": 1}, options=_INTERLEAVED)
    yield _case("deepseek-v3", 11, (128, 1), 64, layout="latent", options=_INTERLEAVED)  # case 33: rotary columns of wider rows
    yield _case("glm-5", 23, (64, 0), 64, layout="latent", options=_INTERLEAVED)  # case 33: k without heads
    yield _case("indexer", 19, (32, 1), 128, dims={"R": 64})
    yield _case("indexer-interleaved", 19, (32, 1), 128, dims={"R": 64}, options=_INTERLEAVED)
    yield _case("ten-heads", 23, (10, 1), 64)  # case 33
    yield _case("k-heads", 23, (6, 3), 64)
    yield _case("k-heads-as-q", 23, (16, 16), 64, options=_INTERLEAVED)
    yield _case("k-2d-float32", 23, (4, 0), 64, "float32")
    yield _case("rotary-6-of-10", 23, (3, 1), 10, dims={"R": 6})
    yield _case("one-token", 1, (64, 1), 64, options=_INTERLEAVED)
    yield _case("beyond-a-grid", 65_539, (1, 0), 8)  # cases 27 and 33
    # Pairs that are no aligned words.
    yield _case("odd-columns", 29, (8, 1), 64, layout="odd-columns", options=_INTERLEAVED)
    yield _case("packed-angles", 29, (8, 1), 64, layout="packed-angles")
    yield _case("inplace", 29, (16, 0), 64, layout="latent", options={**_INTERLEAVED, "inplace": True}, tags=_INPLACE)
    yield _case("inplace-indexer", 29, (4, 1), 128, dims={"R": 64}, options={"inplace": True}, tags=_INPLACE)


# Columns without a rotation in front of those of q and k: qk_nope_head_dim and kv_lora_rank of DeepSeek-V3.
_Q_NOPE, _KV = 128, 512


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    dims, dtype = case.dims, case.torch_dtype
    tokens, width, half = dims["T"], dims["D"], dims["R"] // 2
    heads = (dims["K"],) if dims["K"] else ()
    if case.layout == "latent":
        q = factory.randn(tokens, dims["Q"], _Q_NOPE + width, dtype=dtype)[..., _Q_NOPE:]
        k = factory.randn(tokens, *heads, _KV + width, dtype=dtype)[..., _KV:]
    elif case.layout == "odd-columns":
        q, k = (factory.randn(tokens, *heads_of, width + 1, dtype=dtype)[..., 1:] for heads_of in ((dims["Q"],), heads))
    else:
        q = factory.randn(tokens, dims["Q"], width, dtype=dtype)
        k = factory.randn(tokens, *heads, width, dtype=dtype)
    angle_dtype = torch.float32 if dims["angles"] else dtype
    # Not on the unit circle: every element of cos and sin counts.
    if case.layout == "packed-angles":
        cos, sin = factory.randn(tokens, 2 * half, dtype=angle_dtype).chunk(2, dim=-1)
    else:
        cos, sin = (factory.randn(tokens, half, dtype=angle_dtype) for _ in range(2))
    return {"q": q, "k": k, "cos": cos, "sin": sin}


def _reference(*, inplace: bool = False, **call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return rope_qk_mqa_reference(**call)


def _traffic(case: Case) -> Traffic:
    dims, itemsize = case.dims, case.torch_dtype.itemsize
    columns = dims["R"] if case.options.get("inplace") else dims["D"]  # in place the others are where they belong
    heads = 2 * dims["T"] * (dims["Q"] + max(dims["K"], 1)) * columns * itemsize
    return Traffic(forward=heads + dims["T"] * dims["R"] * (4 if dims["angles"] else itemsize), backward=0)


def _bench_case(model: Model, tokens: int) -> Case:
    # qk_rope_head_dim of DeepSeek-V3's config.json; its checkpoints hold interleaved pairs.
    heads = model.num_attention_heads, 0
    return _case(f"{model.name}-T{tokens}", tokens, heads, 64, layout="latent", options=_INTERLEAVED, tags=frozenset({"bench"}))


def _bench_inplace(case: Case) -> Case:
    return replace(case, options={**case.options, "inplace": True}, tags=case.tags | {"inplace"})


def _bench_indexer(case: Case) -> Case:
    # The indexer of DeepSeek-V3.2: 64 heads of 128 columns, the first 64 of them rotated, pairs a half apart.
    dims = {**case.dims, "Q": 64, "K": 1, "D": 128}
    return replace(case, dims=dims, layout="contiguous", options={**_HALF, "rotary_dim": 64, "inplace": True}, tags=case.tags | {"inplace"})


SPEC = OperatorSpec(
    name="rope-qk-mqa",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=fused_rope_qk_mqa,
    reference=_reference,
    differentiable=(),
    traffic=_traffic,
    bench_case=_bench_case,
    models=("deepseek_v3",),
    bench_variants={"rope-qk-mqa": lambda case: case, "rope-qk-mqa in place": _bench_inplace, "rope-qk-mqa of the indexer": _bench_indexer},
)
