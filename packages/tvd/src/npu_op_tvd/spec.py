"""The cases of the total variation distance and what the lab needs to derive its tests, compile gate, emulation and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import tvd
from .reference import tvd_reference


def _case(name: str, rows: int, vocab: int, dtype: str = "bfloat16", *, labels: str = "", **fields: Any) -> Case:
    return Case(name, {"BT": rows, "V": vocab}, dtype, layout=fields.pop("layout", labels or "contiguous"), **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"vocab-1000-{dtype}", 24, 1000, dtype)
        yield _case(f"odd-vocab-labels-{dtype}", 13, 333, dtype, labels="labels")
    for reduction in ("none", "sum", "mean"):
        yield _case(reduction, 9, 515, "float32", options={"reduction": reduction})
        yield _case(f"{reduction}-labels", 9, 515, labels="labels", options={"reduction": reduction})
    yield _case("equal", 2, 8, "float32", layout="equal")  # case 18: a gradient of -0.5 elsewhere
    yield _case("all-ignored", 5, 70, "float32", labels="all-ignored")  # case 19: NaN elsewhere
    yield _case("all-ignored-mean", 5, 70, labels="all-ignored", options={"reduction": "mean"})
    yield _case("ignore-index-0", 11, 90, labels="labels-of-0", options={"ignore_index": 0})
    yield _case("q-float32", 7, 420, layout="q-float32")
    yield _case("vocab-32000", 3, 32000, "float32")
    yield _case("vocab-odd-40001-labels", 4, 40001, labels="labels")
    yield _case("one-row", 1, 2050)
    yield _case("vocab-2-labels", 50, 2, labels="labels")
    yield _case("transposed", 6, 130, layout="transposed")
    yield _case("sliced", 16, 512, layout="sliced")
    yield _case("sliced-twice", 16, 512, layout="sliced-twice", options={"reduction": "none"})
    for vocab in (32000, 128256, 152064):
        for dtype in ("float32", "bfloat16"):
            yield _case(f"bench-vocab-{vocab}-{dtype}", 2048, vocab, dtype, tags=frozenset({"bench"}))
            yield _case(f"bench-vocab-{vocab}-labels-{dtype}", 2048, vocab, dtype, labels="labels", tags=frozenset({"bench"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, vocab, dtype = case.dims["BT"], case.dims["V"], case.torch_dtype
    # Nearly uniform distributions, drawn as such: nothing is computed from unwritten memory.
    spread = {"scale": 0.3 / vocab, "offset": 1.0 / vocab}
    p = rows_in_layout(factory, case.layout, rows, vocab, dtype=dtype, **spread)
    q_dtype = torch.float32 if case.layout == "q-float32" else dtype
    q = p.clone() if case.layout == "equal" else rows_in_layout(factory, case.layout, rows, vocab, dtype=q_dtype, **spread)
    labels = None
    if case.layout in ("labels", "labels-of-0", "all-ignored"):
        labels = factory.randint(0, 3, rows)
        ignored = case.options.get("ignore_index", -100)
        labels[:: 1 if case.layout == "all-ignored" else 3] = ignored
    return {"p": p, "q": q, "shift_labels": labels}


def _traffic(case: Case) -> Traffic:
    tensor = case.dims["BT"] * case.dims["V"] * case.torch_dtype.itemsize
    # The gradient is written by forward; backward multiplies it by the incoming gradient where that is not 1.
    return Traffic(forward=3 * tensor, backward=2 * tensor, no_grad_forward=2 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.vocab_size, "float32", tags=frozenset({"bench"}))


def _liger(p, q, reduction: str = "batchmean", *, shift_labels=None, ignore_index: int = -100) -> torch.Tensor:
    from liger_kernel.ops import LigerTVDLossFunction

    # Liger's loss is fp32 whatever the dtype of its inputs.
    return LigerTVDLossFunction.apply(p, q, shift_labels, reduction, ignore_index).to(p.dtype)


SPEC = OperatorSpec(
    name="tvd",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=tvd,
    reference=tvd_reference,
    differentiable=("p",),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
    rows="BT",
    free_dims={"V": range(1, 20000)},
)
