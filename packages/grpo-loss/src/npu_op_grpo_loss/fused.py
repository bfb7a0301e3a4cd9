"""The GRPO loss from hidden states: logits exist one chunk of rows at a time, and their gradient is made where they lie."""

from __future__ import annotations

import itertools

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice, require_same_device, require_shape, require_tensor, require_width
from npu_op_runtime.device import target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.loss_gradient import asked_again, times_incoming
from npu_op_runtime.registration import reference_gradients, register_composite, register_op

from .chunks import chunks_of
from .gradients import Sums, add_chunk, empty_sums, grad_bias_of, grad_hidden_of, grad_weight_of
from .launches import write_losses, write_selected_logps
from .op import named, reference_of, stacked_metrics
from .options import OPTIONS_SCHEMA, Options, as_count, check_tokens, checked_options
from .reference import GRPOLoss, fused_linear_grpo_loss_reference, linear, selected_logps
from .tokens import Known, known_of, metrics_of, needs_sequences, prepare, rows_of

ACCUMULATIONS = ("float32", "input")

# Gradients of logits are as small as probability / tokens: of fp16's range, too small. They are made so many times larger and the
# incoming gradient, with a loss scaler's factor in it, is divided by as much. A loss that no number of tokens divides has gradients as
# large as a sequence is long: they need it not, and a scaler, which comes later, could not keep them from overflowing.
_FP16_SCALE = 256.0
_UNDIVIDED = "luspo"

_SCHEMA = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor? ref_hidden, Tensor? ref_weight, Tensor? ref_bias, Tensor selected_ids, "
    "Tensor attention_mask, Tensor advantages, Tensor? ref_logps, Tensor? old_logps, Tensor? vllm_is_ratio, Tensor? num_items_in_batch, "
    f"SymInt chunk_rows, bool splits, bool accumulate_float32, {OPTIONS_SCHEMA}"
)
_BEFORE_OPTIONS = 13 + 3  # arguments of the ops: tensors, and how they are split and summed


def fused_linear_grpo_loss(
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
    chunk_rows: int | None = None,
    weight_accumulation: str = "float32",
    implementation: str | None = None,
) -> GRPOLoss:
    """GRPO loss of `hidden @ lm_head_weight.T + bias`, as TRL 1.16 defines it; logits exist for one chunk of tokens at a time.

    The kernel that makes the loss writes the gradient of a chunk's logits over them. Of the last chunk, of most calls the only one, it is
    kept and backward multiplies it with weight and hidden, which are saved as by a linear layer; chunks before it are multiplied in
    forward. Memory beside arguments and gradients: the logits of a chunk, and, where there are more than two and weights are of half
    precision, V x H in fp32 for the gradient of the weight (see `weight_accumulation`).

    Args:
        hidden: (B, L, H), fp16, bf16 or fp32: the states that predict the L tokens of each completion.
        lm_head_weight: (V, H), dtype of hidden.
        bias: (V,), dtype of hidden, or None.
        ref_hidden, ref_weight, ref_bias: (B, L, H'), (V, H'), (V,): of the reference model, dtype of hidden; no gradient. Instead of
            ref_logps.
        chunk_rows: at most so many tokens are a chunk (rounded to a multiple of 16, from 16 on), and chunks are even; None: as many as
            make the logits four times as large as the weight, between 4 MiB and 4 GiB (without gradients a quarter of that), and in half
            precision a small chunk before them where that, and at most a sixteenth of the tokens, makes the peak a third of eager's
            (not in a graph of torch.compile, nor at sequence level with old_logps). Sequence level with old_logps makes logits twice
            if a sequence is longer.
        weight_accumulation: "float32" adds up the gradients of a half-precision weight by more than two chunks in fp32, 4 x V x H
            bytes; "input" in the weight's dtype, without.
        selected_ids, attention_mask, advantages and the rest: see `grpo_loss`.

    Returns:
        A named tuple of the loss, differentiable in hidden, lm_head_weight and bias, and the metrics.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or range; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    check_tokens("hidden", hidden, selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio, num_items_in_batch)
    _check_head("hidden", hidden, "lm_head_weight", lm_head_weight, "bias", bias, hidden.dtype)
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
    _check_reference_model(hidden, lm_head_weight, ref_hidden, ref_weight, ref_bias, ref_logps, beta)
    require_choice("weight_accumulation", weight_accumulation, ACCUMULATIONS)
    if chunk_rows is not None:
        require_width("chunk_rows", chunk_rows)
    chosen = choose(hidden, implementation)
    count = as_count(num_items_in_batch, hidden)
    penalized = beta != 0
    of_reference = (ref_hidden, ref_weight, ref_bias) if penalized else (None, None, None)
    tokens = (selected_ids, attention_mask, advantages, ref_logps if penalized else None, old_logps, vllm_is_ratio, count)
    if chosen == "eager":
        return _reference(hidden, lm_head_weight, bias, *of_reference, *tokens, options=options)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no GRPO loss")
    # A compiled backward must copy the sum of a first chunk: a split would cost it more memory than it saves.
    chunking = (chunk_rows or 0, not torch.compiler.is_compiling(), weight_accumulation == "float32")
    loss, metrics = fused_linear_grpo_differentiable(hidden, lm_head_weight, bias, *of_reference, *tokens, *chunking, *options)
    return named(loss, metrics, penalized)


def _check_head(
    hidden_name: str,
    hidden: torch.Tensor,
    weight_name: str,
    weight: torch.Tensor,
    bias_name: str,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> None:
    for name, tensor in ((hidden_name, hidden), (weight_name, weight), (bias_name, bias)):
        if tensor is not None:
            require_tensor(name, tensor)
            require_dtype(name, tensor, (dtype,))
    require_same_device(**{hidden_name: hidden, weight_name: weight, bias_name: bias})
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1] or weight.shape[0] == 0:
        raise ValueError(f"{weight_name} must have shape (vocabulary, {hidden.shape[-1]}) (got {tuple(weight.shape)})")
    if bias is not None:
        require_shape(bias_name, bias, weight.shape[:1])


def _check_reference_model(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ref_hidden: torch.Tensor | None,
    ref_weight: torch.Tensor | None,
    ref_bias: torch.Tensor | None,
    ref_logps: torch.Tensor | None,
    beta: float,
) -> None:
    if (ref_hidden is None) != (ref_weight is None):
        missing, given = ("ref_hidden", "ref_weight") if ref_hidden is None else ("ref_weight", "ref_hidden")
        raise ValueError(f"{missing} must be given with {given} (got None)")
    if ref_bias is not None and ref_hidden is None:
        raise ValueError("ref_bias must come with ref_hidden and ref_weight (these are None)")
    if ref_hidden is not None and ref_weight is not None:
        if ref_logps is not None:
            raise ValueError("ref_logps must be None where ref_hidden is given: both say what the reference model's probabilities are")
        require_tensor("ref_hidden", ref_hidden)
        require_shape("ref_hidden", ref_hidden, (*hidden.shape[:2], *ref_hidden.shape[2:3]))
        _check_head("ref_hidden", ref_hidden, "ref_weight", ref_weight, "ref_bias", ref_bias, hidden.dtype)
        require_same_device(hidden=hidden, ref_hidden=ref_hidden)
        if ref_weight.shape[0] != weight.shape[0]:
            raise ValueError(f"ref_weight must have the vocabulary of lm_head_weight, {weight.shape[0]} rows (got {ref_weight.shape[0]})")
    elif ref_logps is None and beta != 0:
        raise ValueError("ref_logps, or ref_hidden and ref_weight, must be given unless beta is 0 (got None)")


def _reference(
    hidden, weight, bias, ref_hidden, ref_weight, ref_bias, ids, mask, advantages, ref_logps, old_logps, vllm_is_ratio, count, *, options
):
    return fused_linear_grpo_loss_reference(
        hidden,
        weight,
        ids,
        mask,
        advantages,
        bias=bias,
        ref_hidden=ref_hidden,
        ref_weight=ref_weight,
        ref_bias=ref_bias,
        ref_logps=ref_logps,
        old_logps=old_logps,
        vllm_is_ratio=vllm_is_ratio,
        num_items_in_batch=count,
        **options.for_reference(),
    )


def _differentiable(hidden, weight, bias, *arguments):
    if tracked(hidden, weight, bias):
        return _FusedLinearGRPO.apply(hidden, weight, bias, *arguments)
    with torch.no_grad():  # the weights of the reference model may require a gradient: they get none
        return fused_linear_grpo_forward(hidden, weight, bias, *arguments, False, False, False)[:2]


class _FusedLinearGRPO(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, *arguments):
        needed = ctx.needs_input_grad[:3]
        loss, metrics, kept, *sums = fused_linear_grpo_forward(hidden, weight, bias, *arguments, *needed)
        # The last chunk's products: hidden gives the weight's gradient, and the weight hidden's.
        ctx.save_for_backward(kept, *sums, hidden if needed[1] else None, weight if needed[0] else None)
        ctx.shapes = [None if one is None else one.shape for one in (hidden, weight, bias)]
        ctx.scale = _scale_of(hidden, Options(*arguments[_BEFORE_OPTIONS - 3 :]))
        ctx.mark_non_differentiable(metrics)
        return loss, metrics

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, _):
        kept, *sums, hidden, weight = ctx.saved_tensors
        needed = _asked_for(ctx)
        if kept.shape[0]:
            gradients = _gradients(kept, Sums(*sums), hidden, weight, ctx.shapes[0], needed)
            gradients = times_incoming(gradients, upstream if ctx.scale == 1.0 else upstream / ctx.scale)
        else:
            gradients = (kept.new_zeros(shape) if need else None for shape, need in zip(ctx.shapes, needed))
        return (*gradients, *(None,) * (_BEFORE_OPTIONS - 3 + len(Options._fields)))


def _asked_for(ctx) -> list[bool]:
    """Whether the running backward goes on to hidden, weight and bias: torch.autograd.grad asks for the gradients of some inputs alone."""
    return [need and _runs(node) for need, (node, _) in zip(ctx.needs_input_grad[:3], ctx.next_functions)]


def _runs(node) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # PyTorch's answer for a leaf that torch.autograd.grad was asked for
        return True


def _gradients(kept, sums, hidden, weight, shape, needed):
    batch, length, width = shape
    rows = batch * length
    return [
        grad_hidden_of(sums, rows, kept, weight).view(shape) if needed[0] else None,
        grad_weight_of(sums, hidden.reshape(rows, width), kept, not asked_again()) if needed[1] else None,
        grad_bias_of(sums, rows, kept) if needed[2] else None,
    ]


def _scale_of(hidden: torch.Tensor, options: Options) -> float:
    return _FP16_SCALE if hidden.dtype == torch.float16 and options.loss_type != _UNDIVIDED else 1.0


def _plan(hidden, weight, ref_hidden, ref_logps, old_logps, chunk_rows, splits, options, needed):
    """The chunks, and whether whole sequences are needed together."""
    by_sequence = needs_sequences(old_logps, ref_logps is not None or ref_hidden is not None, options)
    return chunks_of(*hidden.shape[:2], weight, chunk_rows, by_sequence, needed, splits), by_sequence


def _forward_kernel(
    hidden, weight, bias, ref_hidden, ref_weight, ref_bias, selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio,
    count, chunk_rows, splits, accumulate_float32, *rest,
):  # fmt: skip
    options, needed = Options(*rest[:-3]), rest[-3:]
    chunks, by_sequence = _plan(hidden, weight, ref_hidden, ref_logps, old_logps, chunk_rows, splits, options, needed)
    penalized = ref_logps is not None or ref_hidden is not None
    tokens = prepare(selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio, count, options, penalized)
    sums = empty_sums(chunks, weight, accumulate_float32, needed)
    run = _Run(hidden, weight, bias, (ref_hidden, ref_weight, ref_bias), tokens, options, chunks, sums, any(needed))
    return run.run(by_sequence)


class _Run:
    """One call of the forward op: the chunks, and what they share."""

    def __init__(self, hidden, weight, bias, of_reference, tokens, options, chunks, sums, needs_gradient):
        self._length, width = hidden.shape[1:]
        self._hidden, self._weight, self._bias = hidden.reshape(-1, width), weight, _dense(bias)
        ref_hidden, ref_weight, ref_bias = of_reference
        self._ref_hidden = None if ref_hidden is None else ref_hidden.reshape(-1, ref_hidden.shape[-1])
        self._ref_weight, self._ref_bias = ref_weight, _dense(ref_bias)
        if ref_hidden is not None:
            tokens = tokens._replace(ref=torch.empty_like(tokens.mask))
        self._tokens, self._options = tokens, options
        # What belongs to a sequence or to the batch is no part of a chunk.
        self._by_row = tokens._replace(lengths=None, total=None)
        self._chunks, self._sums, self._needs_gradient = chunks, sums, needs_gradient
        self._logits = hidden.new_empty((chunks.rows, weight.shape[0]))
        self._losses, self._clip = torch.empty_like(tokens.mask), torch.empty_like(tokens.mask)
        self._coefficient = None if needs_gradient else tokens.mask.new_empty(tokens.mask.numel())
        self._exponentials = tokens.mask.new_empty((2, tokens.mask.numel()))
        self._kl = None if tokens.penalty is None else torch.empty_like(tokens.mask)

    def run(self, by_sequence: bool):
        """Loss, metrics, the last chunk with its logits' gradient, and what the chunks before it give."""
        if self._chunks.total:
            self._target = target_of(self._hidden)
            (self._by_sequence if by_sequence else self._by_token)()
        kept = self._logits[: self._chunks.last] if self._needs_gradient else self._logits.new_empty((0,))
        return self._losses.sum(), metrics_of(self._kl, self._clip, self._tokens, self._options), kept, *self._sums

    def _by_token(self) -> None:
        """Ratios depend on the token alone: everything while the logits of a chunk are there."""
        for chunks in self._chunks.groups():
            for rows in chunks:
                self._reference_logps(rows)
                self._losses_of(rows, self._make_logits(rows), None)

    def _by_sequence(self) -> None:
        """Ratios need the log-probabilities of whole sequences first: of as many as fit a chunk, or chunk by chunk and then again."""
        logps = torch.empty_like(self._tokens.mask)
        for chunks in self._chunks.groups():
            for rows in chunks:
                self._reference_logps(rows)
                logits = self._make_logits(rows)
                self._write_logps(logits, self._bias, logps, rows)
            sequences = slice(chunks[0].start // self._length, chunks[-1].stop // self._length)
            known = known_of(logps[sequences], self._tokens, sequences, self._options)
            for rows in chunks:
                again = self._needs_gradient and len(chunks) > 1
                logits = self._make_logits(rows) if again else self._logits[: rows.stop - rows.start]
                start = rows.start - chunks[0].start
                here = slice(start, start + rows.stop - rows.start)
                self._losses_of(rows, logits, rows_of(known, here))

    def _make_logits(self, rows: slice) -> torch.Tensor:
        return torch.mm(self._hidden[rows], self._weight.t(), out=self._logits[: rows.stop - rows.start])

    def _reference_logps(self, rows: slice) -> None:
        if self._ref_hidden is not None:
            logits = torch.mm(self._ref_hidden[rows], self._ref_weight.t(), out=self._logits[: rows.stop - rows.start])
            # What it leaves in the shifts and sums nobody needs, and the policy's overwrite it.
            self._write_logps(logits, self._ref_bias, self._tokens.ref, rows)

    def _write_logps(self, logits, bias, logps, rows: slice) -> None:
        ids, temperature = self._tokens.ids.view(-1)[rows], self._options.temperature
        write_selected_logps(self._target, logits.unsqueeze(0), bias, ids, self._exponentials[:, rows], logps.view(-1)[rows], temperature)

    def _losses_of(self, rows: slice, logits: torch.Tensor, known: Known | None) -> None:
        """Losses of a chunk and, where needed, gradients, by way of the gradient of its logits in their place."""
        write_losses(
            self._target,
            logits.unsqueeze(0),
            self._bias,
            rows_of(self._by_row, rows),
            self._exponentials[:, rows],
            known,
            self._losses.view(-1)[rows],
            None if self._kl is None else self._kl.view(-1)[rows],
            self._clip.view(-1)[rows],
            None if self._coefficient is None else self._coefficient[rows],
            self._options,
            in_place=self._needs_gradient,
            scale=_scale_of(self._hidden, self._options),
        )
        if rows.stop < self._chunks.total:
            add_chunk(self._sums, rows, logits, self._hidden, self._weight)


def _dense(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.contiguous()  # a column of a matrix, say: the kernel walks it with stride 1


def _forward_reference(hidden, *arguments):
    with torch.autocast(hidden.device.type, enabled=False):
        return _by_reference(hidden, *arguments)


def _by_reference(
    hidden, weight, bias, ref_hidden, ref_weight, ref_bias, selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio,
    count, chunk_rows, splits, accumulate_float32, *rest,
):  # fmt: skip
    options, needed = Options(*rest[:-3]), rest[-3:]
    chunks, _ = _plan(hidden, weight, ref_hidden, ref_logps, old_logps, chunk_rows, splits, options, needed)
    if ref_hidden is not None:
        ref_logps = selected_logps(linear(ref_hidden, ref_weight, ref_bias), selected_ids, attention_mask, options.temperature)
    logits = linear(hidden, weight, bias)
    found: list[GRPOLoss] = []

    def formula(logits):
        tensors = (selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio, count)
        found.append(reference_of(logits, tensors, options))
        return found[0].loss

    loss, metrics, kept, *sums = _empty_outputs(hidden, weight, chunks, accumulate_float32, needed)
    if any(needed):
        scale = torch.full((), _scale_of(hidden, options), device=hidden.device)
        (gradient,) = reference_gradients(formula, (logits,), scale, (True,))
        rows_of_gradient, rows_of_hidden = gradient.flatten(0, 1), hidden.flatten(0, 1)
        for rows in itertools.chain.from_iterable(chunks.groups()):
            if rows.stop < chunks.total:
                add_chunk(Sums(*sums), rows, rows_of_gradient[rows], rows_of_hidden, weight)
            else:
                kept.copy_(rows_of_gradient[rows])
    else:
        formula(logits)
    return loss.copy_(found[0].loss.detach()), metrics.copy_(stacked_metrics(found[0])), kept, *sums


def _forward_fake(
    hidden, weight, bias, ref_hidden, ref_weight, ref_bias, selected_ids, attention_mask, advantages, ref_logps, old_logps, vllm_is_ratio,
    count, chunk_rows, splits, accumulate_float32, *rest,
):  # fmt: skip
    chunks, _ = _plan(hidden, weight, ref_hidden, ref_logps, old_logps, chunk_rows, splits, Options(*rest[:-3]), rest[-3:])
    return _empty_outputs(hidden, weight, chunks, accumulate_float32, rest[-3:])


def _empty_outputs(hidden, weight, chunks, accumulate_float32, needed):
    return (
        hidden.new_empty((), dtype=torch.float32),
        hidden.new_empty((4,), dtype=torch.float32),
        hidden.new_empty((chunks.last, weight.shape[0]) if any(needed) else (0,)),
        *empty_sums(chunks, weight, accumulate_float32, needed),
    )


fused_linear_grpo_forward = register_op(
    "npu_op_grpo_loss",
    f"fused_linear_forward({_SCHEMA}, bool needs_hidden, bool needs_weight, bool needs_bias) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
fused_linear_grpo_differentiable = register_composite(
    "npu_op_grpo_loss",
    f"fused_linear_differentiable({_SCHEMA.replace('float ', 'Scalar ')}) -> (Tensor, Tensor)",
    _differentiable,
)
