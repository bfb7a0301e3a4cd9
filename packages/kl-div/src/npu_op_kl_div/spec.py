"""The cases of the KL divergence and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import kl_div
from .reference import kl_div_reference


def _case(name: str, rows: int, vocab: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    return Case(name, {"BT": rows, "V": vocab}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"vocab-1000-{dtype}", 24, 1000, dtype)
        yield _case(f"odd-vocab-{dtype}", 13, 333, dtype, options={"log_target": True})
    for reduction in ("none", "sum", "mean"):
        for log_target in (False, True):
            options = {"reduction": reduction, "log_target": log_target}
            yield _case(f"{reduction}-{'log' if log_target else 'probability'}", 9, 515, "float32", options=options)
    yield _case("target-zeros", 12, 300, "float32", layout="target-zeros")  # case 16: NaN elsewhere
    yield _case("target-zeros-none", 12, 300, layout="target-zeros", options={"reduction": "none"})
    yield _case("target-float32", 7, 420, layout="target-float32")
    yield _case("vocab-32000", 3, 32000, "float32")
    yield _case("vocab-odd-40001", 3, 40001)
    yield _case("one-row", 1, 2050)
    yield _case("vocab-2", 50, 2)
    yield _case("transposed", 6, 130, layout="transposed")
    yield _case("sliced", 16, 512, layout="sliced")
    yield _case("sliced-twice", 16, 512, layout="sliced-twice", options={"reduction": "none"})
    for vocab in (32000, 128256, 152064):
        for dtype in ("float32", "bfloat16"):
            yield _case(f"bench-vocab-{vocab}-{dtype}", 2048, vocab, dtype, tags=frozenset({"bench"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, vocab, dtype = case.dims["BT"], case.dims["V"], case.torch_dtype
    target_dtype = torch.float32 if case.layout == "target-float32" else dtype
    # Distributions whose rows sum to about 1, drawn as they are: nothing is computed from unwritten memory.
    log_probabilities = {"scale": 1.0, "offset": -0.5 - math.log(vocab)}
    probabilities = {"scale": 0.15 / vocab, "offset": 1.0 / vocab}  # none is negative
    logs = rows_in_layout(factory, case.layout, rows, vocab, dtype=dtype, **log_probabilities)
    spread = log_probabilities if case.options.get("log_target", False) else probabilities
    target = rows_in_layout(factory, case.layout, rows, vocab, dtype=target_dtype, **spread)
    if case.layout == "target-zeros":
        target[:, ::3] = 0.0
    return {"input": logs, "target": target}


def _traffic(case: Case) -> Traffic:
    tensor = case.dims["BT"] * case.dims["V"] * case.torch_dtype.itemsize
    return Traffic(forward=2 * tensor, backward=2 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.vocab_size, "float32", tags=frozenset({"bench"}))


def _liger(input: torch.Tensor, target: torch.Tensor, reduction: str = "batchmean", log_target: bool = False) -> torch.Tensor:
    from liger_kernel.ops import LigerKLDivLossFunction

    # Liger's loss is fp32 whatever the dtype of its inputs.
    return LigerKLDivLossFunction.apply(input, target, reduction, log_target).to(input.dtype)


SPEC = OperatorSpec(
    name="kl-div",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=kl_div,
    reference=kl_div_reference,
    differentiable=("input",),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
    rows="BT",
    free_dims={"V": range(1, 20000)},
)
