"""The cases of rotary position embeddings and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import apply_rotary
from .reference import apply_rotary_reference

_INTERLEAVED = {"interleaved": True}


def _case(name: str, tokens: int, heads: tuple[int, int], width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    """B: batch. R: columns of cos. shared: cos and sin serve every batch (2: without that dimension). angles: 1 for fp32 cos and sin.

    pairs: both columns of a pair have the same angle, as models make them; Liger-Kernel reads that of the first.
    """
    dims = {"T": tokens, "B": 1, "Q": heads[0], "K": heads[1], "D": width, "R": width, "shared": 1, "angles": 0, "pairs": 0}
    dims |= fields.pop("dims", {})
    return Case(name, dims, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"half-{dtype}", 37, (8, 2), 64, dtype)
        yield _case(f"interleaved-{dtype}", 37, (8, 2), 64, dtype, options=_INTERLEAVED)
    yield _case("llama", 83, (32, 8), 128, layout="transposed")  # case 20: the view that transformers hands over
    yield _case("batch-shared", 13, (4, 4), 64, dims={"B": 3}, layout="transposed")
    yield _case("batch-own", 13, (4, 1), 64, dims={"B": 3, "shared": 0}, layout="transposed")
    yield _case("angles-2d", 13, (4, 2), 32, dims={"B": 2, "shared": 2})  # case 23
    yield _case("angles-float32", 21, (4, 2), 64, dims={"angles": 1})
    yield _case("width-96", 19, (4, 2), 96)  # case 21
    yield _case("width-192-64-heads", 5, (64, 64), 192, layout="transposed")  # cases 21 and 22
    yield _case("width-192-64-heads-interleaved", 3, (64, 64), 192, options=_INTERLEAVED)
    yield _case("width-10", 23, (3, 1), 10)
    yield _case("width-2", 50, (2, 1), 2)
    yield _case("partial", 19, (4, 2), 80, dims={"R": 32})
    yield _case("partial-interleaved", 19, (4, 2), 64, dims={"R": 16}, options=_INTERLEAVED)
    yield _case("q-alone", 29, (3, 0), 64)
    yield _case("many-tokens", 3000, (1, 1), 64)
    yield _case("sequence-first", 29, (4, 2), 64, options={"unsqueeze_dim": 2}, layout="sequence-first")
    yield _case("sliced", 29, (4, 2), 64, dims={"B": 2}, layout="sliced")
    yield _case("mixed", 29, (4, 2), 64, dims={"B": 2}, layout="mixed")
    yield _case("angles-strided", 19, (4, 2), 64, dims={"B": 2, "R": 32, "shared": 0}, layout="angles-strided")
    yield _case(
        "inplace", 29, (4, 2), 80, dims={"R": 32}, options={"inplace": True}, layout="transposed", tags=frozenset({"values", "inplace"})
    )


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    dims, dtype = case.dims, case.torch_dtype
    batch, tokens, width = dims["B"], dims["T"], dims["D"]

    def heads(count: int, layout: str) -> torch.Tensor | None:
        if count == 0:
            return None
        if layout == "transposed":
            return factory.randn(batch, tokens, count, width, dtype=dtype).transpose(1, 2)
        if layout == "sequence-first":
            return factory.randn(batch, tokens, count, width, dtype=dtype)
        if layout == "sliced":
            # What a projection to q, k and v in one leaves: rows of a wider tensor.
            return factory.randn(batch, tokens, count + 2, width, dtype=dtype)[:, :, 1:-1].transpose(1, 2)
        return factory.randn(batch, count, tokens, width, dtype=dtype)

    def angles() -> torch.Tensor:
        rows = (tokens,) if dims["shared"] == 2 else (1 if dims["shared"] else batch, tokens)
        angle_dtype = torch.float32 if dims["angles"] else dtype
        if dims["pairs"]:
            return factory.randn(*rows, dims["R"] // 2, dtype=angle_dtype).repeat(*(1 for _ in rows), 2)
        if case.layout == "angles-strided":
            # The first columns of a wider table.
            return factory.randn(*rows, width, dtype=angle_dtype)[..., : dims["R"]]
        # Not on the unit circle and not the same in both halves: every element of cos and sin counts.
        return factory.randn(*rows, dims["R"], dtype=angle_dtype)

    q_layout, k_layout = ("transposed", "heads-first") if case.layout == "mixed" else (case.layout, case.layout)
    return {"q": heads(dims["Q"], q_layout), "k": heads(dims["K"], k_layout), "cos": angles(), "sin": angles()}


def _reference(*, inplace: bool = False, **call: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    return apply_rotary_reference(**call)


def _traffic(case: Case) -> Traffic:
    dims, itemsize = case.dims, case.torch_dtype.itemsize
    heads = 2 * dims["B"] * dims["T"] * (dims["Q"] + dims["K"]) * dims["D"] * itemsize
    angles = 2 * (1 if dims["shared"] else dims["B"]) * dims["T"] * dims["R"] * (4 if dims["angles"] else itemsize)
    return Traffic(forward=heads + angles, backward=heads + angles)


def _bench_case(model: Model, tokens: int) -> Case:
    heads = model.num_attention_heads, model.num_key_value_heads
    dims = {"pairs": 1}
    return _case(f"{model.name}-T{tokens}", tokens, heads, model.head_dim, layout="transposed", dims=dims, tags=frozenset({"bench"}))


def _liger(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from liger_kernel.ops import LigerRopeFunction

    return LigerRopeFunction.apply(q, k, cos, sin, None, 1)


def _vendor(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    return apply_rotary(*args, implementation="vendor", **options)


SPEC = OperatorSpec(
    name="rope",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=apply_rotary,
    reference=_reference,
    differentiable=("q", "k"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger, "vendor": _vendor},
)
