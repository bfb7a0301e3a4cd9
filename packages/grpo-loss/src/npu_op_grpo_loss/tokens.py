"""What the kernels need of each token besides its logits: a few values per row, made once per call by PyTorch."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch

from .options import Options


class Tokens(NamedTuple):
    """Per token (B, L), contiguous, fp32 (ids int32), zero at masked tokens; what is not needed is None.

    Attributes:
        ids: selected token.
        mask: as given; lengths: its sum by sequence, at least 1; total: its sum, at least 1.
        advantages: of the token's sequence.
        policy: weight of its policy loss in the loss; slope: weight of the derivative of its ratio; penalty: weight of its KL.
        old: old log-probability; ref: reference's, if given.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    lengths: torch.Tensor
    total: torch.Tensor
    advantages: torch.Tensor
    policy: torch.Tensor
    slope: torch.Tensor
    penalty: torch.Tensor | None
    old: torch.Tensor | None
    ref: torch.Tensor | None


def prepare(
    selected_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    advantages: torch.Tensor,
    ref_logps: torch.Tensor | None,
    old_logps: torch.Tensor | None,
    vllm_is_ratio: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | None,
    options: Options,
    penalized: bool,
) -> Tokens:
    """The values of each token; nothing waits for the device."""
    kept = attention_mask != 0
    mask = _dense(attention_mask * 1.0)
    lengths = mask.sum(-1, keepdim=True).clamp(min=1.0)
    total = mask.sum().clamp(min=1.0)
    divisor = _divisor(options, lengths, total, num_items_in_batch)
    weight = mask / divisor
    correction = None if vllm_is_ratio is None else _dense(torch.where(kept, _by_token(vllm_is_ratio), 0.0))
    policy = weight if correction is None else weight * correction
    slope = policy
    if options.importance_sampling_level == "sequence" and options.loss_type != "cispo":
        # Each token moves the ratio of its sequence by 1 / length, and with it the loss of every token there. In this order a sum of
        # equal numbers, which would be off by a rounding for each, is a sum of ones.
        summed = mask.sum(-1, keepdim=True) if correction is None else (mask * correction).sum(-1, keepdim=True)
        slope = mask * (summed / lengths) / divisor
    return Tokens(
        _dense(torch.where(kept, selected_ids, 0), torch.int32),
        mask,
        lengths,
        total,
        _dense(torch.where(kept, _by_token(advantages), 0.0)),
        policy,
        slope,
        weight * options.beta if penalized else None,
        None if old_logps is None else _dense(torch.where(kept, old_logps, 0.0)),
        None if ref_logps is None or not penalized else _dense(torch.where(kept, ref_logps, 0.0)),
    )


def _divisor(options: Options, lengths: torch.Tensor, total: torch.Tensor, num_items: torch.Tensor | None) -> torch.Tensor | int:
    """What TRL divides the summed loss of a sequence by."""
    batch = max(lengths.shape[0], 1)
    if options.loss_type in ("grpo", "sapo"):
        return lengths * batch
    if options.loss_type == "bnpo":
        return total
    if options.loss_type == "dr_grpo":
        return batch * options.max_completion_length
    if options.loss_type == "luspo":
        return batch
    return total if num_items is None else num_items.clamp(min=1.0)


def _by_token(values: torch.Tensor) -> torch.Tensor:
    return values.unsqueeze(1) if values.dim() == 1 else values


def _dense(values: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return values.to(dtype).contiguous()


class Known(NamedTuple):
    """What takes the log-probabilities of whole sequences: they, the logarithm of each sequence's ratio, and how much a token moves the
    corrected KL of its sequence by way of that ratio; (sequences, L), contiguous."""

    logps: torch.Tensor
    log_ratio: torch.Tensor
    spread: torch.Tensor | None


_Values = TypeVar("_Values", Tokens, Known)


def rows_of(values: _Values, rows: slice) -> _Values:
    """The same tuple for some of the tokens, all sequences one after the other."""
    return type(values)(*(None if one is None else one.view(-1)[rows] for one in values))  # type: ignore[arg-type]


def needs_sequences(old_logps: torch.Tensor | None, penalized: bool, options: Options) -> bool:
    """Whether a token's gradient depends on the log-probabilities of its sequence. Where every ratio is 1 the policy loss does not."""
    corrected = options.use_bias_correction_kl and penalized
    return options.importance_sampling_level == "sequence" and (old_logps is not None or corrected)


def known_of(logps: torch.Tensor, tokens: Tokens, sequences: slice, options: Options) -> Known:
    """From the log-probabilities of some sequences."""
    mask, lengths = tokens.mask[sequences], tokens.lengths[sequences]
    if tokens.old is None:
        log_ratio = torch.zeros_like(logps)
    else:
        log_ratio = ((logps - tokens.old[sequences]) * mask).sum(-1, keepdim=True).div(lengths).expand_as(mask).contiguous()
    if not options.use_bias_correction_kl or tokens.penalty is None or tokens.ref is None:
        return Known(logps, log_ratio, None)
    difference = tokens.ref[sequences] - logps
    kl = torch.exp(difference) - difference - 1.0
    return Known(logps, log_ratio, (tokens.penalty[sequences] * kl).sum(-1, keepdim=True) * mask / lengths)


def metrics_of(kl: torch.Tensor | None, clip: torch.Tensor, tokens: Tokens, options: Options) -> torch.Tensor:
    """KL and the shares clipped from below, from above and in all, (4,); `kl` and `clip` are per token."""
    mask = tokens.mask
    kl_mean = torch.zeros_like(tokens.total) if kl is None else (kl * mask).sum() / tokens.total
    by_token = options.importance_sampling_level == "token"
    share = mask / (tokens.total if by_token else tokens.lengths * max(mask.shape[0], 1))
    low = (share * (clip < 0)).sum()
    high = (share * (clip > 0)).sum()
    return torch.stack((kl_mean, low, high, low + high))
