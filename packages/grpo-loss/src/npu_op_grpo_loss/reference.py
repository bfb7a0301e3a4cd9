"""The GRPO losses in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64.

The formulas are those of TRL 1.16 (`GRPOTrainer._compute_loss`), on the logits of the whole batch, in fp32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from npu_op_runtime.dtypes import compute_dtype

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo")
LEVELS = ("token", "sequence")


class GRPOLoss(NamedTuple):
    """The loss and what is usually logged beside it, all 0-d fp32 on the device, so that nothing waits for it.

    Attributes:
        loss: differentiable.
        kl: mean of the KL estimate over the kept tokens; None when beta is 0.
        clip_low, clip_high: share of kept tokens (of sequences at sequence level) whose ratio is clipped from below (with a negative
            advantage) and from above (with a positive one).
        clip_region: their sum.
    """

    loss: torch.Tensor
    kl: torch.Tensor | None
    clip_low: torch.Tensor
    clip_high: torch.Tensor
    clip_region: torch.Tensor


def grpo_loss_reference(
    logits: torch.Tensor,
    selected_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    advantages: torch.Tensor,
    *,
    ref_logps: torch.Tensor | None = None,
    old_logps: torch.Tensor | None = None,
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
    vllm_is_ratio: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | int | None = None,
    max_completion_length: int | None = None,
) -> GRPOLoss:
    """`grpo_loss` by PyTorch; same arguments."""
    return loss_of_logps(
        selected_logps(logits, selected_ids, attention_mask, temperature),
        attention_mask,
        advantages,
        ref_logps=ref_logps,
        old_logps=old_logps,
        beta=beta,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        loss_type=loss_type,
        importance_sampling_level=importance_sampling_level,
        delta=delta,
        sapo_temperature_pos=sapo_temperature_pos,
        sapo_temperature_neg=sapo_temperature_neg,
        use_bias_correction_kl=use_bias_correction_kl,
        vllm_is_ratio=vllm_is_ratio,
        num_items_in_batch=num_items_in_batch,
        max_completion_length=max_completion_length,
    )


def fused_linear_grpo_loss_reference(
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
    beta: float = 0.04,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
    weight_accumulation: str = "float32",
    **options: object,
) -> GRPOLoss:
    """`fused_linear_grpo_loss` by PyTorch, on the logits of the whole batch; same arguments, the last two mean nothing here."""
    if beta != 0.0 and ref_hidden is not None and ref_weight is not None:
        with torch.no_grad():
            ref_logps = selected_logps(linear(ref_hidden, ref_weight, ref_bias), selected_ids, attention_mask, temperature)
    logits = linear(hidden, lm_head_weight, bias)
    return grpo_loss_reference(
        logits,
        selected_ids,
        attention_mask,
        advantages,
        ref_logps=ref_logps,
        beta=beta,
        temperature=temperature,
        **options,  # type: ignore[arg-type]
    )


def linear(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Logits of the whole batch."""
    logits = hidden @ weight.T
    return logits if bias is None else logits + bias


def selected_logps(logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probability of each selected token, (B, L), of the distribution at `temperature`; ids of masked tokens may be anything."""
    scaled = logits.to(compute_dtype(logits.dtype))
    if temperature != 1.0:
        scaled = scaled / temperature
    ids = ids.masked_fill(mask == 0, 0)
    return torch.log_softmax(scaled, dim=-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def loss_of_logps(
    logps: torch.Tensor,
    attention_mask: torch.Tensor,
    advantages: torch.Tensor,
    *,
    ref_logps: torch.Tensor | None,
    old_logps: torch.Tensor | None,
    beta: float,
    epsilon_low: float,
    epsilon_high: float,
    loss_type: str,
    importance_sampling_level: str,
    delta: float | None,
    sapo_temperature_pos: float,
    sapo_temperature_neg: float,
    use_bias_correction_kl: bool,
    vllm_is_ratio: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | int | None,
    max_completion_length: int | None,
) -> GRPOLoss:
    """The loss from log-probabilities (B, L)."""
    masked = attention_mask == 0
    mask = attention_mask.to(logps.dtype)
    lengths = mask.sum(-1, keepdim=True).clamp(min=1.0)
    total = mask.sum().clamp(min=1.0)
    batch = max(mask.shape[0], 1)
    advantages = (advantages.unsqueeze(1) if advantages.dim() == 1 else advantages).to(logps.dtype)
    old = logps.detach() if old_logps is None else old_logps.masked_fill(masked, 0.0)

    log_ratio = logps - old
    if importance_sampling_level == "sequence":
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True) / lengths
    ratio = torch.exp(log_ratio)
    low = high = torch.zeros_like(ratio, dtype=torch.bool)
    if loss_type == "cispo":
        policy = -ratio.clamp(max=epsilon_high).detach() * advantages * logps
        high = (ratio > epsilon_high) & (advantages > 0)
    elif loss_type == "sapo":
        gate_temperature = torch.full_like(advantages, sapo_temperature_neg).masked_fill(advantages > 0, sapo_temperature_pos)
        policy = -torch.sigmoid(gate_temperature * (ratio - 1)) * 4 / gate_temperature * advantages
    else:
        bounded = ratio if delta is None else ratio.clamp(max=delta)
        clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
        policy = -torch.min(bounded * advantages, clipped * advantages)
        low = (bounded < 1 - epsilon_low) & (advantages < 0)
        high = (bounded > 1 + epsilon_high) & (advantages > 0)
    if vllm_is_ratio is not None:
        correction = vllm_is_ratio.unsqueeze(1) if vllm_is_ratio.dim() == 1 else vllm_is_ratio
        policy = policy * correction.to(logps.dtype)

    token_loss, kl = policy, None
    if beta != 0.0 and ref_logps is not None:
        difference = ref_logps.masked_fill(masked, 0.0) - logps
        divergence = torch.exp(difference) - difference - 1
        if use_bias_correction_kl:
            divergence = divergence * ratio
        token_loss = policy + beta * divergence
        kl = (divergence.detach() * mask).sum() / total

    summed = (token_loss * mask).sum(-1, keepdim=True)
    if loss_type in ("grpo", "sapo"):
        loss = (summed / lengths).sum() / batch
    elif loss_type == "bnpo":
        loss = summed.sum() / total
    elif loss_type == "dr_grpo":
        assert max_completion_length is not None
        loss = summed.sum() / (batch * max_completion_length)
    elif loss_type == "luspo":
        loss = summed.sum() / batch
    else:
        loss = summed.sum() / (total if num_items_in_batch is None else _at_least_one(num_items_in_batch, logps))
    clip_low, clip_high = (_mean(flag.detach(), mask, lengths, total, importance_sampling_level) for flag in (low, high))
    return GRPOLoss(loss, kl, clip_low, clip_high, clip_low + clip_high)


def _at_least_one(count: torch.Tensor | int, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(count, dtype=like.dtype, device=like.device).clamp(min=1.0)


def _mean(flag: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor, total: torch.Tensor, level: str) -> torch.Tensor:
    """Share of kept tokens, or of sequences."""
    if level == "token":
        return (flag * mask).sum() / total
    return ((flag * mask).sum(-1, keepdim=True) / lengths).sum() / max(mask.shape[0], 1)
