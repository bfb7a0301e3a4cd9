"""The cases of the GRPO losses and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them.

Tags say which tensors a call has besides the first five: "bias", "ref-hidden" or "ref-logps", "old", "is-ratio-token" (B, L),
"is-ratio-sequence" (B, 1), "is-ratio-flat" (B,), "items"; "masked": a quarter of the tokens and one whole sequence do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .fused import fused_linear_grpo_loss
from .op import grpo_loss
from .reference import LEVELS, GRPOLoss, fused_linear_grpo_loss_reference, grpo_loss_reference, selected_logps

_TOKENS = 1024  # of a sequence, in Liger-Kernel's benchmark

# Logarithms of ratios, none near the bounds that the cases clip at: on a bound a rounding decides which side a token is on.
_LOG_RATIOS = (-0.6, -0.05, 0.05, 0.6)

_SEQUENCE = {"importance_sampling_level": "sequence"}


def _case(
    name: str, *tags: str, dtype: str = "float32", layout: str = "contiguous", sizes: str = "B2 L13 H16 V130", **options: Any
) -> Case:
    dims = {size[0]: int(size[1:]) for size in sizes.split()}
    return Case(name, dims, dtype, options, layout, frozenset(tags if "bench" in tags else {"values", *tags}))


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"dapo-{dtype}", "ref-hidden", "old", "masked", dtype=dtype)
    yield _case("bias", "bias", "ref-hidden", "old", "masked", dtype="bfloat16")
    yield _case("grpo", "ref-logps", "old", "masked", "is-ratio-token", dtype="bfloat16", loss_type="grpo")
    yield _case("bnpo-two-sided", "ref-logps", "old", "masked", "is-ratio-flat", loss_type="bnpo", delta=1.5)
    yield _case("dr_grpo", "old", "masked", beta=0.0, loss_type="dr_grpo", max_completion_length=40)
    yield _case("cispo", "ref-logps", "old", "masked", "items", loss_type="cispo", epsilon_high=1.3)
    yield _case("sapo", "ref-logps", "old", "masked", loss_type="sapo", temperature=0.7)
    yield _case("luspo-sequence", "ref-logps", "old", "masked", loss_type="luspo", **_SEQUENCE)
    yield _case("grpo-sequence", "ref-hidden", "old", "masked", "is-ratio-sequence", dtype="bfloat16", loss_type="grpo", **_SEQUENCE)
    yield _case("corrected", "ref-logps", "old", "masked", dtype="bfloat16", use_bias_correction_kl=True)
    yield _case("corrected-sequence", "ref-hidden", "old", "masked", use_bias_correction_kl=True, loss_type="grpo", **_SEQUENCE)
    yield _case("sequence-on-policy", "ref-logps", "masked", **_SEQUENCE)
    yield _case("corrected-on-policy", "ref-logps", "masked", use_bias_correction_kl=True, **_SEQUENCE)
    yield _case("strided", "bias", "ref-logps", "old", layout="strided")
    yield _case("wide", "bias", "ref-logps", sizes="B2 L3 H8 V40001")
    yield _case("narrow", "ref-logps", "old", sizes="B3 L5 H8 V3")
    # The kernels of a benchmark shape: they see the vocabulary and not the hidden size.
    for level in LEVELS:
        yield _case(
            f"vocabulary-128256-{level}", "bench", "ref-hidden", "old", dtype="bfloat16", sizes="B1 L8 H16 V128256",
            importance_sampling_level=level,
        )  # fmt: skip


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    batch, length, width, vocabulary = (case.dims[size] for size in "BLHV")
    dtype, tags = case.torch_dtype, case.tags

    def head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        bias = factory.randn(vocabulary, 3, dtype=dtype, scale=0.5)
        bias = bias[:, 1] if case.layout == "strided" else bias[:, 1].contiguous()
        return (
            _states(case, factory),
            factory.randn(vocabulary, width, dtype=dtype, scale=width**-0.5),
            bias if "bias" in tags else None,
        )

    hidden, weight, bias = head()
    inputs: dict[str, Any] = {"hidden": hidden, "lm_head_weight": weight, **_token_inputs(case, factory)}
    if bias is not None:
        inputs["bias"] = bias
    if "ref-hidden" in tags:
        ref_hidden, ref_weight, ref_bias = head()
        inputs |= {"ref_hidden": ref_hidden, "ref_weight": ref_weight}
        if ref_bias is not None:
            inputs["ref_bias"] = ref_bias
    if {"old", "ref-logps"} & tags and "bench" not in tags:
        logits = hidden.float() @ weight.float().T
        inputs |= _other_logps(case, factory, logits if bias is None else logits + bias.float(), inputs)
    elif "old" in tags:
        inputs["old_logps"] = factory.randn(batch, length, dtype=torch.float32, offset=-11.0)
    return inputs


def _states(case: Case, factory: InputFactory) -> torch.Tensor:
    batch, length, width = (case.dims[size] for size in "BLH")
    if case.layout == "strided":  # a slice of a longer and wider tensor, the batch not outermost
        return factory.randn(length + 2, batch, width + 6, dtype=case.torch_dtype).transpose(0, 1)[:, 1:-1, 3:-3]
    return factory.randn(batch, length, width, dtype=case.torch_dtype)


def _token_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    batch, length, vocabulary, tags = case.dims["B"], case.dims["L"], case.dims["V"], case.tags
    mask = factory.randint(0, 4, batch, length).clamp(0, 1) if "masked" in tags else factory.randint(1, 2, batch, length)
    if "masked" in tags and batch > 1:
        mask[1:, : length // 2] = 1
        mask[0] = 0
    inputs: dict[str, Any] = {
        # Unwritten memory may hold any number.
        "selected_ids": factory.randint(0, vocabulary, batch, length).clamp(0, vocabulary - 1),
        "attention_mask": mask,
        "advantages": factory.randn(batch, dtype=torch.float32, offset=0.3),
    }
    for tag, shape in {"is-ratio-token": (batch, length), "is-ratio-sequence": (batch, 1), "is-ratio-flat": (batch,)}.items():
        if tag in tags:
            inputs["vllm_is_ratio"] = factory.randn(*shape, dtype=torch.float32, scale=0.2, offset=1.0)
    if "items" in tags:
        inputs["num_items_in_batch"] = factory.randint(40, 41)
    return inputs


def _other_logps(case: Case, factory: InputFactory, logits: torch.Tensor, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Log-probabilities of the policy that sampled and of the reference model, near those of the present one."""
    batch, length = case.dims["B"], case.dims["L"]
    temperature = case.options.get("temperature", 1.0)
    logps = selected_logps(logits, inputs["selected_ids"], inputs["attention_mask"], temperature)
    logps = (logps * 256).round() / 256  # the same numbers on every device
    found = {}
    if "old" in case.tags:
        columns = 1 if case.options.get("importance_sampling_level") == "sequence" else length
        log_ratio = torch.tensor(_LOG_RATIOS, device=logps.device)[factory.randint(0, 4, batch, columns).clamp(0, 3)]
        found["old_logps"] = logps - log_ratio
    if "ref-logps" in case.tags:
        found["ref_logps"] = logps + factory.randn(batch, length, dtype=torch.float32, scale=0.3)
    return found


def _logits_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    batch, length, vocabulary = case.dims["B"], case.dims["L"], case.dims["V"]
    if case.layout == "strided":  # TRL's: the logits of one position more
        logits = factory.randn(batch, length + 1, vocabulary, dtype=case.torch_dtype)[:, :-1]
    else:
        logits = factory.randn(batch, length, vocabulary, dtype=case.torch_dtype)
    inputs: dict[str, Any] = {"logits": logits, **_token_inputs(case, factory)}
    if "bench" in case.tags:
        return {**inputs, **{name: factory.randn(batch, length, dtype=torch.float32, offset=-11.0) for name in ("old_logps", "ref_logps")}}
    return {**inputs, **_other_logps(case, factory, logits.float(), inputs)}


def _traffic(case: Case) -> Traffic:
    """Arguments in, gradients out; that logits come and go between matrix unit and kernels is no part of the least."""
    size = case.torch_dtype.itemsize
    tokens, width, vocabulary = case.dims["B"] * case.dims["L"], case.dims["H"], case.dims["V"]
    states = (tokens + vocabulary) * width * size
    return Traffic(forward=states * (2 if "ref-hidden" in case.tags else 1), backward=states)


def _logits_traffic(case: Case) -> Traffic:
    logits = case.dims["B"] * case.dims["L"] * case.dims["V"] * case.torch_dtype.itemsize
    return Traffic(forward=logits, backward=2 * logits)


def _bench_case(model: Model, tokens: int) -> Case:
    length = min(tokens, _TOKENS)
    sizes = f"B{tokens // length} L{length} H{model.hidden_size} V{model.vocab_size}"
    return _case(f"{model.name}-T{tokens}", "bench", "ref-hidden", dtype="bfloat16", sizes=sizes)


def _judged(case: Case) -> Case:
    # The hidden size is the products' alone; with fewer terms a sum is no harder to get right.
    return replace(case, dims={**case.dims, "H": 16})


def _liger(
    hidden: torch.Tensor,
    lm_head_weight: torch.Tensor,
    selected_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    advantages: torch.Tensor,
    *,
    ref_hidden: torch.Tensor,
    ref_weight: torch.Tensor,
    importance_sampling_level: str = "token",
) -> GRPOLoss:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    # torch.compile of its loss formula: not on an NPU (Liger-Kernel #1231), nor where it is modelled.
    module = LigerFusedLinearGRPOLoss(importance_sampling_level=importance_sampling_level, compiled=hidden.is_cuda)
    loss, (kl, clipped) = module(
        hidden, lm_head_weight, selected_ids, attention_mask, advantages, ref_input=ref_hidden, ref_weight=ref_weight
    )
    # It tells the region only; the benchmark has no old_logps, so that nothing is clipped on either side.
    return GRPOLoss(loss, kl, clipped, clipped, clipped)


SPEC = OperatorSpec(
    name="grpo-loss",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=fused_linear_grpo_loss,
    reference=fused_linear_grpo_loss_reference,
    differentiable=("hidden", "lm_head_weight", "bias"),
    traffic=_traffic,
    bench_case=_bench_case,
    bench_variants={
        "fused_linear_grpo_loss_token": lambda case: case,
        "fused_linear_grpo_loss_sequence": lambda case: replace(case, options=_SEQUENCE),
    },
    peers={"liger": _liger},
    judged=_judged,
    rows="L",
    free_dims={"B": range(1, 4), "V": range(2, 3000)},
)

# What differs from the fused loss: where the logits lie, and when their gradient is written. The formulas are the same functions.
_LOGITS_CASES = (
    *(f"dapo-{dtype}" for dtype in DTYPES),
    *("dr_grpo", "cispo", "grpo-sequence", "corrected-sequence", "strided", "wide"),
    *(f"vocabulary-128256-{level}" for level in LEVELS),
)

LOGITS_SPEC = OperatorSpec(
    name="grpo-loss",
    cases=tuple(
        replace(case, tags=case.tags - {"bias", "ref-hidden"} | {"ref-logps"}) if {"bias", "ref-hidden"} & case.tags else case
        for case in SPEC.cases
        if case.name in _LOGITS_CASES
    ),
    make_inputs=_logits_inputs,
    function=grpo_loss,
    reference=grpo_loss_reference,
    differentiable=("logits",),
    traffic=_logits_traffic,
    bench_case=_bench_case,
    rows="L",
    free_dims=SPEC.free_dims,
)
