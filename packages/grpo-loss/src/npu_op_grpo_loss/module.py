"""The loss as a module: the options at construction, the tensors at every call."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_choice, require_width

from .fused import ACCUMULATIONS, fused_linear_grpo_loss
from .options import checked_options
from .reference import GRPOLoss


class FusedLinearGRPOLoss(torch.nn.Module):
    """`fused_linear_grpo_loss` with fixed options; see there for what they mean.

    Raises (at construction):
        TypeError, ValueError: an option of the wrong type or range; the message names it.
    """

    def __init__(
        self,
        *,
        beta: float = 0.04,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        importance_sampling_level: str = "token",
        temperature: float = 1.0,
        delta: float | None = None,
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        use_bias_correction_kl: bool = False,
        max_completion_length: int | None = None,
        chunk_rows: int | None = None,
        weight_accumulation: str = "float32",
    ) -> None:
        super().__init__()
        options = {
            "beta": beta,
            "epsilon_low": epsilon_low,
            "epsilon_high": epsilon_high,
            "loss_type": loss_type,
            "importance_sampling_level": importance_sampling_level,
            "temperature": temperature,
            "delta": delta,
            "sapo_temperature_pos": sapo_temperature_pos,
            "sapo_temperature_neg": sapo_temperature_neg,
            "use_bias_correction_kl": use_bias_correction_kl,
            "max_completion_length": max_completion_length,
        }
        checked_options(**options)  # type: ignore[arg-type]
        require_choice("weight_accumulation", weight_accumulation, ACCUMULATIONS)
        if chunk_rows is not None:
            require_width("chunk_rows", chunk_rows)
        self.options = {**options, "chunk_rows": chunk_rows, "weight_accumulation": weight_accumulation}

    def forward(
        self,
        hidden: torch.Tensor,
        lm_head_weight: torch.Tensor,
        selected_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        advantages: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        ref_hidden: torch.Tensor | None = None,
        ref_weight: torch.Tensor | None = None,
        ref_bias: torch.Tensor | None = None,
        ref_logps: torch.Tensor | None = None,
        old_logps: torch.Tensor | None = None,
        vllm_is_ratio: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> GRPOLoss:
        return fused_linear_grpo_loss(
            hidden,
            lm_head_weight,
            selected_ids,
            attention_mask,
            advantages,
            bias=bias,
            ref_hidden=ref_hidden,
            ref_weight=ref_weight,
            ref_bias=ref_bias,
            ref_logps=ref_logps,
            old_logps=old_logps,
            vllm_is_ratio=vllm_is_ratio,
            num_items_in_batch=num_items_in_batch,
            **self.options,  # type: ignore[arg-type]
        )

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
