"""The registered ops of the GRPO loss on logits, their autograd Function and the public function."""

from __future__ import annotations

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.device import target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.registration import reference_gradients, register_composite, register_op

from .launches import write_logits_gradient, write_losses, write_selected_logps
from .options import OPTIONS_SCHEMA, Options, as_count, check_tokens, checked_options
from .reference import GRPOLoss, grpo_loss_reference, loss_of_logps, selected_logps
from .tokens import known_of, metrics_of, needs_sequences, prepare

_TENSORS = (
    "Tensor selected_ids, Tensor attention_mask, Tensor advantages, Tensor? ref_logps, Tensor? old_logps, Tensor? vllm_is_ratio, "
    "Tensor? num_items_in_batch"
)


_ARGUMENTS = 8 + len(Options._fields)  # of the differentiable op


def grpo_loss(
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
    implementation: str | None = None,
) -> GRPOLoss:
    """GRPO loss of logits that exist already, as TRL 1.16 defines it; without them, see `fused_linear_grpo_loss`.

    Args:
        logits: (B, L, V), fp16, bf16 or fp32: those that predict the L tokens of each completion. Read where they lie if the last
            dimension is contiguous.
        selected_ids: (B, L), int64 or int32, the tokens of the completions; at masked tokens anything.
        attention_mask: (B, L), 0 where a token does not count.
        advantages: (B,) or (B, L).
        ref_logps: (B, L), log-probabilities of the reference model; needed unless beta is 0.
        old_logps: (B, L), log-probabilities under the policy that sampled; None: the present ones, so that every ratio is 1.
        beta: weight of the KL estimate.
        epsilon_low, epsilon_high: the ratio is clipped to [1 - epsilon_low, 1 + epsilon_high]; for "cispo" it is clipped to at most
            epsilon_high.
        loss_type: "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo" or "luspo".
        importance_sampling_level: "token" or "sequence" (GSPO).
        temperature: logits are divided by it.
        delta: upper bound of the ratio where it multiplies a negative advantage (two-sided clipping); None for none.
        sapo_temperature_pos, sapo_temperature_neg: of the gate of "sapo", for positive and for other advantages.
        use_bias_correction_kl: multiply the KL estimate by the ratio, which makes its gradient unbiased (the default of TRL 1.16).
        vllm_is_ratio: (B,), (B, 1) or (B, L), multiplies the policy loss of each token.
        num_items_in_batch: what "dapo" and "cispo" divide by (TRL: kept tokens of the generation batch, per process and accumulation
            step); None: the kept tokens of this call.
        max_completion_length: needed by "dr_grpo".
        implementation: None (the kernels on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        A named tuple of the loss, differentiable in logits, and the metrics.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or range; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    check_tokens("logits", logits, selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio, num_items_in_batch)
    options = checked_options(
        beta=beta,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        temperature=temperature,
        delta=delta,
        sapo_temperature_pos=sapo_temperature_pos,
        sapo_temperature_neg=sapo_temperature_neg,
        use_bias_correction_kl=use_bias_correction_kl,
        loss_type=loss_type,
        importance_sampling_level=importance_sampling_level,
        max_completion_length=max_completion_length,
    )
    penalized = beta != 0
    if penalized and ref_logps is None:
        raise ValueError("ref_logps must be given unless beta is 0 (got None)")
    chosen = choose(logits, implementation)
    count = as_count(num_items_in_batch, logits)
    tensors = (selected_ids, attention_mask, advantages, ref_logps if penalized else None, old_logps, vllm_is_ratio, count)
    if chosen == "eager":
        return reference_of(logits, tensors, options)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no GRPO loss")
    loss, metrics = grpo_loss_differentiable(logits, *tensors, *options)
    return named(loss, metrics, penalized)


def named(loss: torch.Tensor, metrics: torch.Tensor, penalized: bool) -> GRPOLoss:
    kl, low, high, region = metrics.unbind()
    return GRPOLoss(loss, kl if penalized else None, low, high, region)


def stacked_metrics(result: GRPOLoss) -> torch.Tensor:
    """The metrics of the reference as the registered ops give them, (4,)."""
    found = (result.kl, result.clip_low, result.clip_high, result.clip_region)
    return torch.stack([torch.zeros_like(result.loss) if one is None else one for one in found]).detach()


def reference_of(logits: torch.Tensor, tensors: tuple[torch.Tensor | None, ...], options: Options) -> GRPOLoss:
    """The reference on `tensors`, from selected_ids to num_items_in_batch."""
    ids, mask, advantages, ref_logps, old_logps, vllm_is_ratio, count = tensors
    assert ids is not None and mask is not None and advantages is not None
    return grpo_loss_reference(
        logits,
        ids,
        mask,
        advantages,
        ref_logps=ref_logps,
        old_logps=old_logps,
        vllm_is_ratio=vllm_is_ratio,
        num_items_in_batch=count,
        **options.for_reference(),  # type: ignore[arg-type]
    )


def _differentiable(logits, *arguments):
    if tracked(logits):
        return _GRPOLoss.apply(logits, *arguments)
    with torch.no_grad():  # advantages and the like may require a gradient: they get none
        return grpo_loss_forward(logits, *arguments)[:2]


class _GRPOLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, *arguments):
        loss, metrics, sums, coefficient = grpo_loss_forward(logits, *arguments)
        ids, mask = arguments[:2]
        ctx.save_for_backward(logits, ids, mask, sums, coefficient)
        ctx.temperature = Options(*arguments[7:]).temperature
        ctx.mark_non_differentiable(metrics)
        return loss, metrics

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, _):
        logits, ids, mask, sums, coefficient = ctx.saved_tensors
        return grpo_loss_backward(upstream, logits, ids, mask, sums, coefficient, ctx.temperature), *(None,) * (_ARGUMENTS - 1)


def _forward_kernel(logits, selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio, count, *values):
    options = Options(*values)
    loss, metrics, sums, coefficient = _forward_fake(logits)
    penalized = ref_logps is not None
    tokens = prepare(selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio, count, options, penalized)
    clip, kl = torch.empty_like(tokens.mask), torch.empty_like(tokens.mask) if penalized else None
    losses = torch.empty_like(tokens.mask)
    if logits.numel():
        target = target_of(logits)
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        known = None
        if needs_sequences(old_logps, penalized, options):
            logps = torch.empty_like(losses)
            write_selected_logps(target, logits, None, tokens.ids, sums, logps, options.temperature)
            known = known_of(logps, tokens, slice(None), options)
        write_losses(target, logits, None, tokens, sums, known, losses, kl, clip, coefficient, options, in_place=False)
    loss.copy_(losses.sum())
    return loss, metrics.copy_(metrics_of(kl, clip, tokens, options)), sums, coefficient


def _forward_reference(logits, *arguments):
    *tensors, count = arguments[:7]
    ids, mask, advantages, ref_logps, old_logps, vllm_is_ratio = tensors
    options = Options(*arguments[7:])
    scaled = logits.float() / options.temperature
    logps = selected_logps(scaled, ids, mask, 1.0)
    found: list[GRPOLoss] = []

    def formula(logps):
        settings = options.for_reference()
        del settings["temperature"]
        found.append(
            loss_of_logps(
                logps, mask, advantages, ref_logps=ref_logps, old_logps=old_logps, vllm_is_ratio=vllm_is_ratio,
                num_items_in_batch=count, **settings,
            )
        )  # fmt: skip
        return found[0].loss

    # A few numbers per token: in fp64 their roundings are none of the gradient's.
    (coefficient,) = reference_gradients(formula, (logps.double(),), torch.ones((), dtype=torch.float64, device=logits.device), (True,))
    highest = scaled.amax(-1)
    sums = torch.stack((highest, torch.exp(scaled - highest.unsqueeze(-1)).sum(-1)))
    return found[0].loss.detach().float(), stacked_metrics(found[0]).float(), sums, (coefficient / options.temperature).float()


def _forward_fake(logits, *_):
    tokens = logits.shape[:2]
    return (
        logits.new_empty((), dtype=torch.float32),
        logits.new_empty((4,), dtype=torch.float32),
        logits.new_empty((2, *tokens), dtype=torch.float32),
        logits.new_empty(tokens, dtype=torch.float32),
    )


def _backward_kernel(upstream, logits, selected_ids, attention_mask, sums, coefficient, temperature):
    gradient = torch.empty_like(logits)
    if logits.numel():
        view = logits if logits.stride(-1) == 1 else logits.contiguous()
        out = gradient if gradient.stride(-1) == 1 else torch.empty_like(view)
        ids = torch.where(attention_mask != 0, selected_ids, 0).to(torch.int32).contiguous()
        write_logits_gradient(target_of(logits), view, out, ids, sums, coefficient * upstream, temperature)
        if out is not gradient:
            gradient.copy_(out)
    return gradient


def _backward_reference(upstream, logits, selected_ids, attention_mask, sums, coefficient, temperature):
    ids = selected_ids.masked_fill(attention_mask == 0, 0).unsqueeze(-1).long()
    highest, total = sums.unsqueeze(-1)
    probabilities = torch.exp(logits.float() / temperature - highest) / total
    selected = torch.zeros_like(probabilities).scatter_(-1, ids, 1.0)
    gradient = (selected - probabilities) * (coefficient * upstream).unsqueeze(-1)
    return torch.empty_like(logits).copy_(gradient)


grpo_loss_forward = register_op(
    "npu_op_grpo_loss",
    f"forward(Tensor logits, {_TENSORS}, {OPTIONS_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
grpo_loss_backward = register_op(
    "npu_op_grpo_loss",
    "backward(Tensor upstream, Tensor logits, Tensor selected_ids, Tensor attention_mask, Tensor sums, Tensor coefficient, "
    "float temperature) -> Tensor",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=lambda upstream, logits, *_: torch.empty_like(logits),
)
grpo_loss_differentiable = register_composite(
    "npu_op_grpo_loss",
    f"differentiable(Tensor logits, {_TENSORS}, {OPTIONS_SCHEMA.replace('float ', 'Scalar ')}) -> (Tensor, Tensor)",
    _differentiable,
)
