"""The cases of Llama 4's rotary position embeddings and what the lab derives its tests, compile gate, emulation and benchmarks from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import apply_llama4_rotary
from .reference import apply_llama4_rotary_reference


def _case(name: str, tokens: int, heads: tuple[int, int], width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    """B: batch. shared: freqs_cis serves every batch (2: without that dimension). packed: freqs_cis as real numbers, 2: of q's dtype."""
    dims = {"T": tokens, "B": 1, "Q": heads[0], "K": heads[1], "D": width, "shared": 1, "packed": 0, **fields.pop("dims", {})}
    return Case(name, dims, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"pairs-{dtype}", 37, (8, 2), 64, dtype)
    yield _case("llama-4", 43, (40, 8), 128)
    yield _case("batch-own", 13, (4, 2), 64, dims={"B": 3, "shared": 0})  # case 24
    yield _case("batch-shared", 13, (4, 2), 64, dims={"B": 3})
    yield _case("freqs-2d", 13, (4, 2), 32, dims={"B": 2, "shared": 2})
    yield _case("packed", 19, (4, 2), 64, dims={"packed": 1})
    yield _case("packed-own-dtype", 19, (4, 2), 64, dims={"packed": 2})
    yield _case("width-96", 19, (4, 2), 96)
    yield _case("width-10", 23, (3, 1), 10)
    yield _case("q-alone", 29, (3, 0), 64)
    yield _case("many-tokens", 1500, (1, 1), 64)
    yield _case("transposed", 29, (4, 2), 64, dims={"B": 2}, layout="transposed")
    yield _case("sliced", 29, (4, 2), 64, dims={"B": 2}, layout="sliced")
    yield _case("inplace", 29, (4, 2), 64, options={"inplace": True}, tags=frozenset({"values", "inplace"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    dims, dtype = case.dims, case.torch_dtype
    batch, tokens, width = dims["B"], dims["T"], dims["D"]

    def heads(count: int) -> torch.Tensor | None:
        if count == 0:
            return None
        if case.layout == "transposed":
            return factory.randn(batch, count, tokens, width, dtype=dtype).transpose(1, 2)
        if case.layout == "sliced":
            return factory.randn(batch, tokens, count + 2, width, dtype=dtype)[:, :, 1:-1]
        return factory.randn(batch, tokens, count, width, dtype=dtype)

    rows = (tokens,) if dims["shared"] == 2 else (1 if dims["shared"] else batch, tokens)
    freqs = factory.randn(*rows, width, dtype=dtype if dims["packed"] == 2 else torch.float32)
    if not dims["packed"]:
        # A tensor of its own, as torch.polar makes it: torch.compile cannot fake a complex view of a real tensor (2.13).
        freqs = torch.view_as_complex(freqs.unflatten(-1, (width // 2, 2))).clone()
    return {"q": heads(dims["Q"]), "k": heads(dims["K"]), "freqs_cis": freqs}


def _reference(*, inplace: bool = False, **call: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    return apply_llama4_rotary_reference(**call)


def _traffic(case: Case) -> Traffic:
    dims, itemsize = case.dims, case.torch_dtype.itemsize
    heads = 2 * dims["B"] * dims["T"] * (dims["Q"] + dims["K"]) * dims["D"] * itemsize
    freqs = (1 if dims["shared"] else dims["B"]) * dims["T"] * dims["D"] * (itemsize if dims["packed"] == 2 else 4)
    return Traffic(forward=heads + freqs, backward=heads + freqs)


def _bench_case(model: Model, tokens: int) -> Case:
    heads = model.num_attention_heads, model.num_key_value_heads
    return _case(f"{model.name}-T{tokens}", tokens, heads, model.head_dim, tags=frozenset({"bench"}))


def _liger(q: torch.Tensor, k: torch.Tensor, freqs_cis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from liger_kernel.ops import LigerLlama4RopeFunction

    return LigerLlama4RopeFunction.apply(q, k, freqs_cis)


SPEC = OperatorSpec(
    name="llama4-rope",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=apply_llama4_rotary,
    reference=_reference,
    differentiable=("q", "k"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
)
