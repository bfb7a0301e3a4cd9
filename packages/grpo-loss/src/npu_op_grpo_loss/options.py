"""What a GRPO loss is asked to compute, checked."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from npu_op_runtime.checks import require_choice, require_number, require_same_device, require_shape, require_tensor, require_width
from npu_op_runtime.dtypes import require_dtype

from .reference import LEVELS, LOSS_TYPES

INTEGERS = (torch.int64, torch.int32)


class Options(NamedTuple):
    """Options of a call in the order of the registered ops; `delta` is infinite and `max_completion_length` 0 where not given."""

    beta: float
    epsilon_low: float
    epsilon_high: float
    temperature: float
    delta: float
    sapo_temperature_pos: float
    sapo_temperature_neg: float
    use_bias_correction_kl: bool
    loss_type: str
    importance_sampling_level: str
    max_completion_length: int

    def for_reference(self) -> dict[str, object]:
        """The arguments of the reference."""
        return {
            **self._asdict(),
            "delta": None if self.delta == math.inf else self.delta,
            "max_completion_length": self.max_completion_length or None,
        }


# The registered ops take the options in this order, after their tensors.
OPTIONS_SCHEMA = (
    "float beta, float epsilon_low, float epsilon_high, float temperature, float delta, float sapo_temperature_pos, "
    "float sapo_temperature_neg, bool use_bias_correction_kl, str loss_type, str importance_sampling_level, SymInt max_completion_length"
)


def checked_options(
    *,
    beta: float,
    epsilon_low: float,
    epsilon_high: float,
    temperature: float,
    delta: float | None,
    sapo_temperature_pos: float,
    sapo_temperature_neg: float,
    use_bias_correction_kl: bool,
    loss_type: str,
    importance_sampling_level: str,
    max_completion_length: int | None,
) -> Options:
    """Raises TypeError or ValueError that names the option, what came and what is allowed."""
    for name, value in (("beta", beta), ("epsilon_low", epsilon_low), ("epsilon_high", epsilon_high)):
        require_number(name, value)
    for name, value in (
        ("temperature", temperature),
        ("sapo_temperature_pos", sapo_temperature_pos),
        ("sapo_temperature_neg", sapo_temperature_neg),
        ("delta", math.inf if delta is None else delta),
    ):
        require_number(name, value)
        if value <= 0:
            raise ValueError(f"{name} must be positive (got {value})")
    if not isinstance(use_bias_correction_kl, bool):
        raise TypeError(f"use_bias_correction_kl must be a bool (got {use_bias_correction_kl!r})")
    require_choice("loss_type", loss_type, LOSS_TYPES)
    require_choice("importance_sampling_level", importance_sampling_level, LEVELS)
    if max_completion_length is not None:
        require_width("max_completion_length", max_completion_length)
    elif loss_type == "dr_grpo":
        raise ValueError("max_completion_length must be given for loss_type 'dr_grpo' (got None)")
    return Options(
        beta,
        epsilon_low,
        epsilon_high,
        temperature,
        math.inf if delta is None else delta,
        sapo_temperature_pos,
        sapo_temperature_neg,
        use_bias_correction_kl,
        loss_type,
        importance_sampling_level,
        max_completion_length or 0,
    )


def check_tokens(
    first: str,
    tensor: torch.Tensor,
    selected_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    advantages: torch.Tensor,
    ref_logps: torch.Tensor | None,
    old_logps: torch.Tensor | None,
    vllm_is_ratio: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | int | None,
) -> None:
    """Raises TypeError or ValueError that names the argument; `tensor`, argument `first`, is (B, L, ...)."""
    require_tensor(first, tensor)
    require_dtype(first, tensor)
    if tensor.dim() != 3:
        raise ValueError(f"{first} must have three dimensions, sequences x tokens x width (got shape {tuple(tensor.shape)})")
    batch, length = tensor.shape[:2]
    floats = {"advantages": advantages, "ref_logps": ref_logps, "old_logps": old_logps, "vllm_is_ratio": vllm_is_ratio}
    given = {name: value for name, value in floats.items() if value is not None}
    for name, value in {"selected_ids": selected_ids, "attention_mask": attention_mask, **given}.items():
        require_tensor(name, value)
    require_same_device(**{first: tensor}, selected_ids=selected_ids, attention_mask=attention_mask, **given)
    require_dtype("selected_ids", selected_ids, INTEGERS)
    require_shape("selected_ids", selected_ids, (batch, length))
    require_shape("attention_mask", attention_mask, (batch, length))
    for name, value in given.items():
        require_dtype(name, value)
    for name in ("ref_logps", "old_logps"):
        if name in given:
            require_shape(name, given[name], (batch, length))
    if advantages.dim() != 1:
        require_shape("advantages", advantages, (batch, length))
    else:
        require_shape("advantages", advantages, (batch,))
    if vllm_is_ratio is not None and tuple(vllm_is_ratio.shape) not in ((batch,), (batch, 1), (batch, length)):
        allowed = f"({batch},), ({batch}, 1) or ({batch}, {length})"
        raise ValueError(f"vllm_is_ratio must have shape {allowed} (got {tuple(vllm_is_ratio.shape)})")
    if isinstance(num_items_in_batch, torch.Tensor):
        require_same_device(**{first: tensor}, num_items_in_batch=num_items_in_batch)
        require_shape("num_items_in_batch", num_items_in_batch, ())
    elif num_items_in_batch is not None:
        require_number("num_items_in_batch", num_items_in_batch)


def as_count(num_items_in_batch: torch.Tensor | int | None, like: torch.Tensor) -> torch.Tensor | None:
    """The number of items as a 0-d tensor on the device, so that no value of it is part of a graph."""
    if num_items_in_batch is None or isinstance(num_items_in_batch, torch.Tensor):
        return num_items_in_batch
    return torch.full((), num_items_in_batch, dtype=torch.float32, device=like.device)
