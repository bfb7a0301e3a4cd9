"""What a benchmark runs: an operator's bench cases for published models at a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npu_op_runtime.spec import MODELS, Case, OperatorSpec

# Liger's names of the modes; "forward" records the graph for a backward, "full" is forward and backward.
MODES = ("no-grad-forward", "forward", "backward", "full")
# ours: the operator; eager: the reference; compile: torch.compile of the reference; vendor: torch_npu's fused op; liger: Liger-Kernel.
PROVIDERS = ("ours", "eager", "compile", "vendor", "liger")
TOKENS = (1024, 2048, 4096, 8192)

# The rows of Liger-Kernel's RFC #1159 and the operator that each is about.
RFC_ROWS = {
    "rms_norm": "rmsnorm",
    "swiglu": "swiglu",
    "rope": "rope",
    "cross_entropy": "cross-entropy",
    "softmax": "softmax",
    "layer_norm": "layernorm",
    "group_norm": "groupnorm",
    "geglu": "geglu",
    "fused_linear_grpo_loss_sequence": "grpo-loss",
    "fused_linear_grpo_loss_token": "grpo-loss",
    "dyt_beta=False": "dyt",
    "dyt_beta=True": "dyt",
    "jsd": "jsd",
    "kl_div": "kl-div",
    "llama4_rope": "llama4-rope",
    "poly_norm": "polynorm",
    "qwen2vl_mrope": "qwen2vl-mrope",
    "tvd": "tvd",
}


@dataclass(frozen=True)
class Point:
    """One place of a sweep.

    Attributes:
        spec: the operator.
        kernel: the name of the row, Liger's where it has one.
        model: of `MODELS`.
        case: what is called.
        tokens: `case.dims[spec.rows]`, or what the spec made of it.
    """

    spec: OperatorSpec
    kernel: str
    model: str
    case: Case
    tokens: int


def points_of(spec: OperatorSpec, models: Sequence[str], tokens: Sequence[int]) -> list[Point]:
    """Every kernel of the operator at every model and number of tokens, models outermost.

    Raises:
        ValueError: an unknown model, or one that has nothing of the operator; the message lists those that have.
    """
    unknown = [name for name in models if name not in spec.models]
    if unknown:
        raise ValueError(f"model must be one of {', '.join(spec.models)} (got {', '.join(unknown)})")
    variants = spec.bench_variants or {_row_of(spec.name): lambda case: case}
    return [
        Point(spec, kernel, model, change(spec.bench_case(MODELS[model], count)), count)
        for kernel, change in variants.items()
        for model in models
        for count in tokens
    ]


def _row_of(operator: str) -> str:
    return next((row for row, of in RFC_ROWS.items() if of == operator), operator)
