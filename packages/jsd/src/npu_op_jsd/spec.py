"""The cases of the generalised Jensen-Shannon divergence and what the lab needs to derive tests, gates and benchmarks from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import jsd
from .reference import jsd_reference


def _case(name: str, rows: int, vocab: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    return Case(name, {"BT": rows, "V": vocab}, dtype, **fields)


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"vocab-1000-{dtype}", 24, 1000, dtype)
        yield _case(f"odd-vocab-labels-{dtype}", 13, 333, dtype, layout="labels")
    for beta in (0.0, 0.1, 1.0):
        yield _case(f"beta-{beta}", 9, 515, "float32", options={"beta": beta})
        yield _case(f"beta-{beta}-labels", 9, 515, layout="labels", options={"beta": beta})
    for beta in (0.0, 0.5, 1.0):
        # Case 17: NaN loss and gradient elsewhere. Log-probabilities of -104 and of -inf in both.
        yield _case(f"impossible-{beta}", 6, 200, "float32", layout="impossible", options={"beta": beta})
    yield _case("all-ignored", 5, 70, "float32", layout="all-ignored")
    yield _case("ignore-index-0", 11, 90, layout="labels-of-0", options={"ignore_index": 0})
    yield _case("p-float32", 7, 420, layout="p-float32")
    yield _case("vocab-32000", 3, 32000, "float32")
    yield _case("vocab-odd-40001-labels", 4, 40001, layout="labels")
    yield _case("one-row", 1, 2050)
    yield _case("vocab-2-labels", 50, 2, layout="labels")
    yield _case("transposed", 6, 130, layout="transposed")
    yield _case("sliced", 16, 512, layout="sliced")
    yield _case("sliced-twice", 16, 512, layout="sliced-twice")
    for vocab in (32000, 128256, 152064):
        for dtype in ("float32", "bfloat16"):
            yield _case(f"bench-vocab-{vocab}-{dtype}", 2048, vocab, dtype, tags=frozenset({"bench"}))
            yield _case(f"bench-vocab-{vocab}-labels-{dtype}", 2048, vocab, dtype, layout="labels", tags=frozenset({"bench"}))


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, vocab, dtype = case.dims["BT"], case.dims["V"], case.torch_dtype
    # Rows sum to about 1, as those of a softmax do: exp of N(-0.5, 1) has the mean 1.
    offset = -0.5 - math.log(vocab)
    log_q = rows_in_layout(factory, case.layout, rows, vocab, dtype=dtype, offset=offset)
    p_dtype = torch.float32 if case.layout == "p-float32" else dtype
    log_p = rows_in_layout(factory, case.layout, rows, vocab, dtype=p_dtype, offset=offset)
    if case.layout == "impossible":
        for log in (log_q, log_p):
            log[:, ::3] = -104.0
            log[:, 1::3] = -math.inf
    labels = None
    if case.layout in ("labels", "labels-of-0", "all-ignored"):
        labels = factory.randint(0, 3, rows)
        labels[:: 1 if case.layout == "all-ignored" else 3] = case.options.get("ignore_index", -100)
    return {"log_q": log_q, "log_p": log_p, "shift_labels": labels}


def _traffic(case: Case) -> Traffic:
    tensor = case.dims["BT"] * case.dims["V"] * case.torch_dtype.itemsize
    # The gradient is written by forward; backward multiplies it by the incoming gradient where that is not 1.
    return Traffic(forward=3 * tensor, backward=2 * tensor, no_grad_forward=2 * tensor)


def _bench_case(model: Model, tokens: int) -> Case:
    return _case(f"{model.name}-T{tokens}", tokens, model.vocab_size, "float32", tags=frozenset({"bench"}))


def _liger(log_q, log_p, *, beta: float = 0.5, shift_labels=None, ignore_index: int = -100) -> torch.Tensor:
    from liger_kernel.ops import LigerJSDFunction

    return LigerJSDFunction.apply(log_q, log_p, shift_labels, beta, ignore_index)


SPEC = OperatorSpec(
    name="jsd",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=jsd,
    reference=jsd_reference,
    differentiable=("log_q",),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
    rows="BT",
    free_dims={"V": range(1, 20000)},
)
