"""The cases of Qwen2-VL's multimodal rotary embeddings and what the lab derives its tests, compile gate and benchmarks from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import apply_multimodal_rotary
from .reference import apply_multimodal_rotary_reference

# Sections of Qwen2-VL at 128 columns, in sixteenths of half a head.
_SIXTEENTHS = (4, 6, 6)


def _case(name: str, tokens: int, heads: tuple[int, int], width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    """B: batch. angles: 1 for fp32 cos and sin. pairs: both columns of a pair have the same angle; Liger-Kernel reads that of the first."""
    dims = {"T": tokens, "B": 1, "Q": heads[0], "K": heads[1], "D": width, "angles": 0, "pairs": 0, **fields.pop("dims", {})}
    options = {"mrope_section": tuple(width // 2 * part // 16 for part in _SIXTEENTHS), **fields.pop("options", {})}
    return Case(name, dims, dtype, options=options, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"qwen2-vl-{dtype}", 37, (7, 1), 128, dtype)
    yield _case("llama", 43, (32, 8), 128, layout="transposed")
    yield _case("batch", 13, (4, 2), 64, dims={"B": 3}, layout="transposed")
    yield _case("angles-float32", 21, (4, 2), 64, dims={"angles": 1})
    yield _case("one-axis", 13, (4, 2), 64, options={"mrope_section": (32, 0, 0)})
    yield _case("no-height", 13, (4, 2), 64, options={"mrope_section": (9, 0, 23)})
    yield _case("width-96", 19, (4, 2), 96, options={"mrope_section": (7, 21, 20)})
    yield _case("width-10", 23, (3, 1), 10, options={"mrope_section": (1, 2, 2)})
    yield _case("q-alone", 29, (3, 0), 64)
    yield _case("many-tokens", 1500, (1, 1), 64)
    yield _case("sequence-first", 29, (4, 2), 64, options={"unsqueeze_dim": 2}, layout="sequence-first")
    yield _case("sliced", 29, (4, 2), 64, dims={"B": 2}, layout="sliced")
    yield _case("inplace", 29, (4, 2), 64, options={"inplace": True}, layout="transposed", tags=frozenset({"values", "inplace"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    dims, dtype = case.dims, case.torch_dtype
    batch, tokens, width = dims["B"], dims["T"], dims["D"]

    def heads(count: int) -> torch.Tensor | None:
        if count == 0:
            return None
        if case.layout == "transposed":
            return factory.randn(batch, tokens, count, width, dtype=dtype).transpose(1, 2)
        if case.layout == "sequence-first":
            return factory.randn(batch, tokens, count, width, dtype=dtype)
        if case.layout == "sliced":
            return factory.randn(batch, tokens, count + 2, width, dtype=dtype)[:, :, 1:-1].transpose(1, 2)
        return factory.randn(batch, count, tokens, width, dtype=dtype)

    def angles() -> torch.Tensor:
        # The three axes differ, and so do the halves: a column of a wrong axis shows.
        angle_dtype = torch.float32 if dims["angles"] else dtype
        if dims["pairs"]:
            return factory.randn(3, batch, tokens, width // 2, dtype=angle_dtype).repeat(1, 1, 1, 2)
        return factory.randn(3, batch, tokens, width, dtype=angle_dtype)

    return {"q": heads(dims["Q"]), "k": heads(dims["K"]), "cos": angles(), "sin": angles()}


def _reference(*, inplace: bool = False, **call: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    return apply_multimodal_rotary_reference(**call)


def _traffic(case: Case) -> Traffic:
    dims, itemsize = case.dims, case.torch_dtype.itemsize
    heads = 2 * dims["B"] * dims["T"] * (dims["Q"] + dims["K"]) * dims["D"] * itemsize
    # Of the three axes together one row is used.
    angles = 2 * dims["B"] * dims["T"] * dims["D"] * (4 if dims["angles"] else itemsize)
    return Traffic(forward=heads + angles, backward=heads + angles)


def _bench_case(model: Model, tokens: int) -> Case:
    heads = model.num_attention_heads, model.num_key_value_heads
    dims = {"pairs": 1}
    return _case(f"{model.name}-T{tokens}", tokens, heads, model.head_dim, layout="transposed", dims=dims, tags=frozenset({"bench"}))


def _liger(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mrope_section: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    from liger_kernel.ops import LigerQwen2VLMRopeFunction

    return LigerQwen2VLMRopeFunction.apply(q, k, cos, sin, list(mrope_section), 1)


SPEC = OperatorSpec(
    name="qwen2vl-mrope",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=apply_multimodal_rotary,
    reference=_reference,
    differentiable=("q", "k"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
)
