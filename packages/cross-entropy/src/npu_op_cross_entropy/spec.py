"""The cases of cross-entropy and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from npu_op_runtime.spec import Case, InputFactory, Model, OperatorSpec, Traffic, rows_in_layout

from .op import cross_entropy
from .reference import cross_entropy_reference

_BENCH = frozenset({"bench"})
# Standard deviation of the logits: small gradients beside that of the target must count for the oracle, too.
_SCALES = {"large": 3.0, "peaked": 8.0}
_METRICS = {"return_token_accuracy": True, "return_predicted_tokens": True}


def _case(name: str, rows: int, width: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    return Case(name, {"T": rows, "V": width}, dtype, **fields)


def _cases() -> Iterator[Case]:
    yield _case("odd-width", 37, 123)
    for dtype in ("float16", "float32"):
        yield _case(f"odd-width-{dtype}", 37, 123, dtype, options={"reduction": "none"})
    yield _case("several-tiles", 5, 40001, layout="peaked")
    yield _case("vocab-262144", 3, 262144, "float32")
    yield _case("two-classes", 50, 2, "float32")
    # Per-row losses rounded to bf16 gave 3200.0 for 3208.38 elsewhere.
    yield _case("sum", 96, 300, options={"reduction": "sum"})
    # Gradients of later rows were zeroed, or shared, where the first row is ignored.
    yield _case("none", 33, 300, "float32", layout="first-ignored", options={"reduction": "none"})
    # Class weights with smoothing gave NaN at a width that is no block multiple.
    yield _case("weight-and-smoothing", 40, 1000, layout="weighted", options={"label_smoothing": 0.1})
    # Padded lanes added exp(0) under a soft cap.
    yield _case("softcap", 6, 4100, layout="large", options={"softcap": 1.0})
    yield _case("z-loss", 24, 200, "float32", options={"lse_square_scale": 1e-3, "return_z_loss": True})
    yield _case("metrics", 24, 200, options=_METRICS)
    options = {"label_smoothing": 0.1, "lse_square_scale": 1e-3, "softcap": 5.0, "reduction": "none", "ignore_index": 3}
    yield _case("every-option", 24, 200, layout="weighted", options=options)
    yield _case("shifted-labels", 12, 96, layout="shifted")
    yield _case("sliced", 24, 512, layout="sliced")
    yield _case("transposed", 6, 64, "float32", layout="transposed")
    yield _case("inplace", 20, 500, options={"inplace": True}, tags=frozenset({"values", "inplace"}))
    for dtype, widths in (("bfloat16", (32000, 128256, 152064, 262144)), ("float32", (128256, 262144))):
        for width in widths:
            yield _case(f"bench-{width}-{dtype}", 4096, width, dtype, tags=_BENCH)
        yield _case(f"bench-every-option-{dtype}", 1024, 50257, dtype, layout="weighted", options={**options, **_METRICS}, tags=_BENCH)
    for name, value in {"label_smoothing": 0.1, "softcap": 30.0}.items():
        yield _case(f"bench-{name}", 1024, 50257, options={name: value}, tags=_BENCH)


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["V"], case.torch_dtype
    if case.layout == "shifted":
        # The logits of a causal model beside the labels of the next tokens, as views.
        logits = factory.randn(2, rows + 1, width, dtype=dtype)[:, :-1]
        target = factory.randint(0, width, 2, rows + 1)[:, 1:]
    else:
        logits = rows_in_layout(factory, case.layout, rows, width, dtype=dtype, scale=_SCALES.get(case.layout, 1.0))
        target = factory.randint(0, width, *logits.shape[:-1])
    # Unwritten memory may hold anything, and Liger-Kernel's function asserts on the host that targets are in range.
    target.remainder_(width)
    if "values" in case.tags:
        target[..., 3::7] = case.options.get("ignore_index", -100)
    if case.layout == "first-ignored":
        target[:1] = -100
    inputs = {"logits": logits, "target": target}
    if case.layout == "weighted":
        inputs["weight"] = factory.randn(width, 3, dtype=dtype).abs()[:, 1]  # a column of a matrix
    return inputs


def _traffic(case: Case) -> Traffic:
    logits = case.dims["T"] * case.dims["V"] * case.torch_dtype.itemsize
    return Traffic(forward=logits, backward=2 * logits)


def _bench_case(model: Model, tokens: int) -> Case:
    # Liger-Kernel's benchmark: fp32 logits.
    return _case(f"{model.name}-T{tokens}", tokens, model.vocab_size, "float32", tags=_BENCH)


def _liger(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    from liger_kernel.ops import LigerCrossEntropyFunction

    if options:
        raise NotImplementedError(f"Liger-Kernel is compared without options (got {', '.join(options)})")
    loss: torch.Tensor = LigerCrossEntropyFunction.apply(logits, target, weight)[0]
    return loss


SPEC = OperatorSpec(
    name="cross-entropy",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=cross_entropy,
    reference=cross_entropy_reference,
    differentiable=("logits",),
    traffic=_traffic,
    bench_case=_bench_case,
    bench_variants={"cross_entropy": lambda case: case, "cross_entropy of bf16 logits": lambda case: replace(case, dtype="bfloat16")},
    peers={"liger": _liger},
    free_dims={"V": range(2, 9000)},
)
