"""The registered ops of cross-entropy, its autograd Function and the public function."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice, require_same_device, require_shape, require_tensor
from npu_op_runtime.device import Target, interpreting, target_of
from npu_op_runtime.dispatch import DEBUG, choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.launch import launch, load_kernels
from npu_op_runtime.registration import reference_gradients, register_composite, register_op
from npu_op_runtime.rows import rows_of
from npu_op_runtime.tiling import Buffer, RowPlan, programs
from npu_op_runtime.vocabulary import plan_vocabulary

from .reference import CrossEntropyOutput, cross_entropy_reference

REDUCTIONS = ("none", "mean", "sum")
_KERNELS = "npu_op_cross_entropy.kernel"

# Columns whose maximum stands for that of the row (see kernel.py).
_HEAD = 512

# Rows whose values the one program of the last sums takes at a time: 16 KB of fp32.
_REDUCE_BLOCK = 4096


def _debugging() -> dict[str, bool]:
    # Triton's own switch, without which a device_assert is nothing; its interpreter does not know it.
    return {"debug": True} if DEBUG and not interpreting() else {}


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    inplace: bool = False,
    implementation: str | None = None,
) -> torch.Tensor | CrossEntropyOutput:
    """Cross-entropy between logits and class indices over the last dimension, computed in fp32.

    Args:
        logits: (..., V), fp16, bf16 or fp32, any layout whose last dimension is contiguous.
        target: (...), int64 or int32, each in [0, V) or `ignore_index`. Any other makes the loss and gradient of its row NaN, without a
            host synchronisation; with NPU_OP_DEBUG=1 in the environment the kernel also asserts.
        weight: (V,) of the classes, fp16, bf16 or fp32, or None. Gets no gradient.
        ignore_index: rows with this target have neither loss nor gradient.
        reduction: "mean" divides by the sum of the weights of the kept targets (their count without weights), "sum", or "none". Where no
            row is kept, the mean is 0 with a gradient of zero (torch gives NaN).
        label_smoothing: share of the target's probability that goes to all classes evenly, in [0, 1].
        lse_square_scale: adds this times log(sum(exp(logits)))^2 to the loss of each kept row (PaLM's z-loss); their count divides it
            where the reduction is "mean".
        softcap: takes softcap * tanh(logits / softcap) for the logits (Gemma 2), or None.
        return_z_loss, return_token_accuracy, return_predicted_tokens: return a `CrossEntropyOutput` with these.
        inplace: let backward write the gradient over the logits. A second backward through the graph then fails by its version check.
            Has no effect under torch.compile, which plans memory itself.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        The loss in fp32: () or, with "none", the shape of target. A `CrossEntropyOutput` if a return_ option is set. Differentiable in
        logits.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or range; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("logits", logits)
    require_dtype("logits", logits)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must have at least one class in their last dimension (got shape {tuple(logits.shape)})")
    require_tensor("target", target)
    require_dtype("target", target, (torch.int64, torch.int32))
    require_shape("target", target, logits.shape[:-1])
    if weight is not None:
        require_tensor("weight", weight)
        require_dtype("weight", weight)
        require_shape("weight", weight, logits.shape[-1:])
    require_same_device(logits=logits, target=target, weight=weight)
    require_options(ignore_index, reduction, label_smoothing, lse_square_scale, softcap)
    chosen = choose(logits, implementation)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no cross-entropy with these options; use 'eager'")
    if chosen == "eager":
        return cross_entropy_reference(
            logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
            lse_square_scale=lse_square_scale, softcap=softcap, return_z_loss=return_z_loss,
            return_token_accuracy=return_token_accuracy, return_predicted_tokens=return_predicted_tokens,
        )  # fmt: skip
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    call = _differentiable if inplace and not torch.compiler.is_compiling() else cross_entropy_differentiable
    loss, *others = call(
        logits, target, weight, ignore_index, reduction, label_smoothing, lse_square_scale, 0.0 if softcap is None else softcap,
        *wanted, inplace,
    )  # fmt: skip
    if not any(wanted):
        return loss
    return CrossEntropyOutput(loss, *[other if want else None for other, want in zip(others, wanted)])


def require_options(
    ignore_index: object, reduction: object, label_smoothing: float, lse_square_scale: float, softcap: float | None
) -> None:
    """Raises TypeError or ValueError naming the option that `cross_entropy` does not take."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, torch.SymInt)):
        raise TypeError(f"ignore_index must be an int (got {type(ignore_index).__name__})")
    require_choice("reduction", reduction, REDUCTIONS)
    numbers = {"label_smoothing": label_smoothing, "lse_square_scale": lse_square_scale, "softcap": softcap}
    for argument, value in numbers.items():
        if argument == "softcap" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat, torch.SymInt)):
            raise TypeError(f"{argument} must be a number (got {type(value).__name__})")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must lie in [0, 1] (got {label_smoothing})")
    if softcap is not None and not softcap > 0.0:
        raise ValueError(f"softcap must be above 0, or None (got {softcap})")


def _differentiable(
    logits, target, weight, ignore_index, reduction, label_smoothing, lse_square_scale, softcap,
    return_z_loss, return_token_accuracy, return_predicted_tokens, inplace,
):  # fmt: skip
    options = ignore_index, reduction, label_smoothing, lse_square_scale, softcap
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    if tracked(logits):
        return _CrossEntropy.apply(logits, target, weight, options, wanted, inplace)
    return cross_entropy_forward(logits, target, weight, *options, *wanted, False)[:4]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, weight, options, wanted, inplace):
        loss, *others, label, shift, total, class_weight, scales, weight_sum = cross_entropy_forward(
            logits, target, weight, *options, *wanted, True
        )
        ctx.save_for_backward(logits, label, shift, total, class_weight, weight, weight_sum, scales)
        ctx.options = options[1:]
        ctx.inplace = inplace
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return loss, *others

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss, *_):
        if dloss is None:
            return (None,) * 6
        logits, *saved = ctx.saved_tensors
        if ctx.inplace and not torch.compiler.is_compiling():
            gradient = logits.detach()
            cross_entropy_backward_inplace(dloss, gradient, *saved, *ctx.options)
        else:
            gradient = cross_entropy_backward(dloss, logits, *saved, *ctx.options)
        return gradient, None, None, None, None, None


class _Forward(NamedTuple):
    """What the forward op returns; tensors that a call does not need are empty.

    `label`, `shift`, `total`, `class_weight` hold a value for each row: what the gradient needs besides the logits (see kernel.py).
    """

    loss: torch.Tensor
    z_loss: torch.Tensor
    token_accuracy: torch.Tensor
    predicted_tokens: torch.Tensor
    label: torch.Tensor
    shift: torch.Tensor
    total: torch.Tensor
    class_weight: torch.Tensor
    scales: torch.Tensor
    weight_sum: torch.Tensor


# The buffers are those of kernel.py; the compile gate proves the sums. A half-precision stream has an fp32 copy at work.
@functools.cache
def _forward_plan(target: Target, n_cols: int, itemsize: int, weighted: bool, smoothed: bool, capped: bool, argmax: bool) -> RowPlan:
    work = 3 + (itemsize < 4) + 2 * smoothed + 2 * capped + 4 * argmax
    columns = (Buffer(4, "columns", streamed=True), Buffer(4, "columns")) if weighted and smoothed else ()
    return plan_vocabulary(target, n_cols, (Buffer(itemsize, streamed=True), *(Buffer(4),) * work, *columns))


@functools.cache
def _backward_plan(target: Target, n_cols: int, itemsize: int, weighted: bool, smoothed: bool, capped: bool) -> RowPlan:
    work = 3 + 2 * (itemsize < 4) + smoothed + 2 * capped
    columns = (Buffer(4, "columns", streamed=True), Buffer(4, "columns")) if weighted and smoothed else ()
    # In fp32 with a little room to spare, in which no buffer waits for another to be read (modelled: docs/operators/cross-entropy.md).
    spare = (Buffer(2),) if itemsize == 4 else ()
    buffers = (*(Buffer(itemsize, streamed=True),) * 2, *(Buffer(4),) * work, *columns, *spare)
    # Nothing is reduced, so one row will do, and none leaves a tile half empty. In half precision its correction in every tile shows.
    return plan_vocabulary(target, n_cols, buffers, fewest=1 if itemsize == 4 else 2)


def _forward_kernel(
    logits, target, weight, ignore_index, reduction, label_smoothing, lse_square_scale, softcap,
    return_z_loss, return_token_accuracy, return_predicted_tokens, save,
):  # fmt: skip
    out = _Forward(*_forward_fake(
        logits, target, weight, ignore_index, reduction, label_smoothing, lse_square_scale, softcap,
        return_z_loss, return_token_accuracy, return_predicted_tokens, save,
    ))  # fmt: skip
    if target.numel() == 0:
        return _Forward(*[value.zero_() for value in out])
    place = target_of(logits)
    kernels = load_kernels(_KERNELS, place.backend)
    none = reduction == "none"
    flags = {"WEIGHTED": weight is not None, "Z": return_z_loss or lse_square_scale != 0.0, "ACCURACY": return_token_accuracy}
    smoothed, capped = label_smoothing != 0.0, softcap != 0.0
    weight_sum = out.weight_sum
    if weight is not None:
        weight = weight.contiguous()  # a row of a matrix, say: the kernel walks it with stride 1
        torch.sum(weight, 0, dtype=torch.float32, out=weight_sum)

    def of_rows(wanted: bool, given: torch.Tensor | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
        if not wanted:
            return None
        return (logits.new_empty(target.shape, dtype=dtype) if given is None else given).unsqueeze(-1)

    values = [
        of_rows(True, out.loss if none else None),
        of_rows(True, out.label if save else None),
        of_rows(save, out.shift),
        of_rows(save, out.total),
        of_rows(flags["WEIGHTED"], out.class_weight if save else None),
        of_rows(flags["Z"], out.z_loss if none and return_z_loss else None),
        of_rows(flags["ACCURACY"], out.token_accuracy if none else None),
        of_rows(return_predicted_tokens, dtype=torch.int32),
    ]
    rows = rows_of((logits, target.unsqueeze(-1)), [value for value in values if value is not None])
    laid = iter(rows.tensors[2:])
    n_cols = logits.shape[-1]
    plan = _forward_plan(
        place, n_cols, logits.element_size(), flags["WEIGHTED"], smoothed, capped, return_token_accuracy or return_predicted_tokens
    )
    launch(
        kernels.cross_entropy_forward_kernel, programs(place, plan.row_tiles(rows.blocks, rows.inner), persistent=False), place, logits,
        *rows.tensors[:2], weight, weight_sum, *(None if value is None else next(laid) for value in values),
        rows.outer, rows.middle, rows.inner, *(stride for strides in rows.strides[:3] for stride in strides),
        ignore_index, label_smoothing, lse_square_scale, softcap,
        num_warps=plan.num_warps, n_cols=n_cols, ROWS=plan.rows, COLS=plan.cols, HEAD=min(plan.cols, _HEAD), ONE_BLOCK=rows.blocks == 1,
        NONE=none, SAVE=save, SMOOTHED=smoothed, CAPPED=capped, PREDICTION=return_predicted_tokens, DEBUG=DEBUG, **flags,
        **_debugging(),
    )  # fmt: skip
    rows.write_back()
    loss, label, _, _, class_weight, z_loss, correct, predicted = values
    if not none:
        launch(
            kernels.cross_entropy_reduce_kernel, 1, place, logits,
            loss, label, class_weight, z_loss, correct, out.loss, out.z_loss if return_z_loss else None, out.token_accuracy, out.scales,
            target.numel(),
            BLOCK=_REDUCE_BLOCK, MEAN=reduction == "mean", **flags,
        )  # fmt: skip
    return out if predicted is None else out._replace(predicted_tokens=predicted.squeeze(-1).to(torch.int64))


def _forward_reference(
    logits, target, weight, ignore_index, reduction, label_smoothing, lse_square_scale, softcap,
    return_z_loss, return_token_accuracy, return_predicted_tokens, save,
):  # fmt: skip
    out = _Forward(*_forward_fake(
        logits, target, weight, ignore_index, reduction, label_smoothing, lse_square_scale, softcap,
        return_z_loss, return_token_accuracy, return_predicted_tokens, save,
    ))  # fmt: skip
    found = cross_entropy_reference(
        logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
        lse_square_scale=lse_square_scale, softcap=softcap or None, return_z_loss=return_z_loss,
        return_token_accuracy=return_token_accuracy, return_predicted_tokens=return_predicted_tokens,
    )  # fmt: skip
    for into, value in zip(out, [found] if isinstance(found, torch.Tensor) else found):
        if value is not None:
            into.copy_(value)
    if save:
        out.label.copy_(target.masked_fill(target == ignore_index, -1))
        for saved in (out.shift, out.total, out.class_weight, out.scales, out.weight_sum):
            saved.zero_()  # the reference of backward starts from the logits
    return out


def _forward_fake(
    logits, target, weight, ignore_index, reduction, label_smoothing, lse_square_scale, softcap,
    return_z_loss, return_token_accuracy, return_predicted_tokens, save,
):  # fmt: skip
    def empty(wanted: bool, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return logits.new_empty(shape if wanted else 0, dtype=dtype)

    reduced = target.shape if reduction == "none" else ()
    return (
        empty(True, reduced),
        empty(return_z_loss, reduced),
        empty(return_token_accuracy, reduced),
        empty(return_predicted_tokens, target.shape, torch.int64),
        empty(save, target.shape),
        empty(save, target.shape),
        empty(save, target.shape),
        empty(save and weight is not None, target.shape),
        empty(reduction == "mean", (2,)),
        empty(weight is not None, ()),
    )


def _backward_kernel(
    dloss, logits, label, shift, total, class_weight, weight, weight_sum, scales, reduction, label_smoothing, lse_square_scale, softcap
):
    gradient = torch.empty_like(logits)
    _backward_into(
        gradient, dloss, logits, label, shift, total, class_weight, weight, weight_sum, scales,
        reduction, label_smoothing, lse_square_scale, softcap,
    )  # fmt: skip
    return gradient


def _backward_inplace_kernel(dloss, logits, *rest):
    _backward_into(logits, dloss, logits, *rest)


def _backward_into(
    gradient, dloss, logits, label, shift, total, class_weight, weight, weight_sum, scales,
    reduction, label_smoothing, lse_square_scale, softcap,
):  # fmt: skip
    if logits.numel() == 0:
        return
    place = target_of(logits)
    weight = None if weight is None else weight.contiguous()
    per_row = [value.unsqueeze(-1) for value in (label, shift, total, *([] if weight is None else [class_weight]))]
    incoming = [dloss.unsqueeze(-1)] if reduction == "none" else []
    rows = rows_of((logits, *per_row, *incoming), (gradient,))
    x, *saved = rows.tensors[: 1 + len(per_row)]
    dloss_in, dloss_strides = (rows.tensors[-2], rows.strides[-2]) if incoming else (dloss, (0, 0, 0))
    n_cols = logits.shape[-1]
    smoothed, capped = label_smoothing != 0.0, softcap != 0.0
    plan = _backward_plan(place, n_cols, logits.element_size(), weight is not None, smoothed, capped)
    launch(
        load_kernels(_KERNELS, place.backend).cross_entropy_backward_kernel,
        programs(place, plan.row_tiles(rows.blocks, rows.inner), persistent=False), place, logits,
        x, *(*saved, None)[:4], weight, weight_sum, scales, dloss_in, rows.tensors[-1], rows.outer, rows.middle, rows.inner,
        *rows.strides[0], *rows.strides[1], *dloss_strides, *rows.strides[-1], label_smoothing, lse_square_scale, softcap,
        num_warps=plan.num_warps, n_cols=n_cols, ROWS=plan.rows, COLS=plan.cols, ONE_BLOCK=rows.blocks == 1, MEAN=reduction == "mean",
        WEIGHTED=weight is not None, SMOOTHED=smoothed, CAPPED=capped, Z=lse_square_scale != 0.0,
    )  # fmt: skip
    rows.write_back()


def _backward_reference(
    dloss, logits, label, shift, total, class_weight, weight, weight_sum, scales, reduction, label_smoothing, lse_square_scale, softcap
):
    def formula(logits: torch.Tensor) -> torch.Tensor:
        return cross_entropy_reference(  # type: ignore[return-value]
            logits, label.long(), weight, ignore_index=-1, reduction=reduction, label_smoothing=label_smoothing,
            lse_square_scale=lse_square_scale, softcap=softcap or None,
        )  # fmt: skip

    return torch.empty_like(logits).copy_(reference_gradients(formula, (logits,), dloss, (True,))[0])


def _backward_inplace_reference(dloss, logits, *rest):
    logits.copy_(_backward_reference(dloss, logits, *rest))


cross_entropy_forward = register_op(
    "npu_op_cross_entropy",
    "forward(Tensor logits, Tensor target, Tensor? weight, int ignore_index, str reduction, float label_smoothing, float lse_square_scale,"
    " float softcap, bool return_z_loss, bool return_token_accuracy, bool return_predicted_tokens, bool save) -> (Tensor loss,"
    " Tensor z_loss, Tensor token_accuracy, Tensor predicted_tokens, Tensor label, Tensor shift, Tensor total, Tensor class_weight,"
    " Tensor scales, Tensor weight_sum)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
_SAVED = (
    "Tensor label, Tensor shift, Tensor total, Tensor class_weight, Tensor? weight, Tensor weight_sum, Tensor scales, str reduction,"
    " float label_smoothing, float lse_square_scale, float softcap"
)
cross_entropy_backward = register_op(
    "npu_op_cross_entropy",
    f"backward(Tensor dloss, Tensor logits, {_SAVED}) -> Tensor",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=lambda dloss, logits, *rest: torch.empty_like(logits),
)
cross_entropy_backward_inplace = register_op(
    "npu_op_cross_entropy",
    f"backward_(Tensor dloss, Tensor(a!) logits, {_SAVED}) -> ()",
    kernel=_backward_inplace_kernel,
    reference=_backward_inplace_reference,
    fake=lambda *args: None,
)
cross_entropy_differentiable = register_composite(
    "npu_op_cross_entropy",
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight, int ignore_index, str reduction, Scalar label_smoothing,"
    " Scalar lse_square_scale, Scalar softcap, bool return_z_loss, bool return_token_accuracy, bool return_predicted_tokens, bool inplace)"
    " -> (Tensor loss, Tensor z_loss, Tensor token_accuracy, Tensor predicted_tokens)",
    _differentiable,
)
