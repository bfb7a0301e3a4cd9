"""The registered op of the input of multi-token prediction, and the public function."""

from __future__ import annotations

import functools
from typing import Any

import torch

from npu_op_runtime.autograd import refuse_gradients
from npu_op_runtime.checks import require_number, require_same_device, require_shape, require_tensor
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.launch import launch, load_kernels
from npu_op_runtime.registration import register_composite, register_op
from npu_op_runtime.tiling import Buffer, RowPlan, plan_rows, programs

from .reference import mtp_input_reference
from .rotation import require_rotation, unrotated


def fused_mtp_input(
    embedding: torch.Tensor,
    hidden: torch.Tensor,
    enorm_weight: torch.Tensor,
    hnorm_weight: torch.Tensor,
    *,
    enorm_eps: float,
    hnorm_eps: float,
    rotation: torch.Tensor | None = None,
    convention: str | None = None,
    implementation: str | None = None,
) -> torch.Tensor:
    """What eh_proj of a multi-token-prediction layer takes: the normalised token embedding beside the normalised hidden state.

    Each half is x / sqrt(mean(x^2) + eps) times its weight in fp32, rounded once to its dtype. transformers' DeepseekV3RMSNorm, and
    implementation="eager", round fp16 and bf16 before the weight too.

    Args:
        embedding: (tokens, hidden_size), of the next token; fp16, bf16 or fp32; rows may lie apart.
        hidden: as embedding, the previous hidden state.
        enorm_weight, hnorm_weight: (hidden_size,), fp16, bf16 or fp32 (may differ from the states).
        enorm_eps, hnorm_eps: of the model's two norms, added to the mean squares; there is no default on purpose.
        rotation: (hidden_size, hidden_size) in the dtype of hidden, for a checkpoint whose hidden states are rotated: they are multiplied
            by it (PyTorch's product) before the norm.
        convention: with a rotation R, "h @ R" or "h @ R.T": which of them un-rotates a state.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        (tokens, 2 * hidden_size), contiguous, in the dtype of embedding. For inference: only implementation="eager" is differentiable.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a gradient is asked for, or a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_number("enorm_eps", enorm_eps)
    require_number("hnorm_eps", hnorm_eps)
    require_tensor("embedding", embedding)
    require_dtype("embedding", embedding)
    if embedding.dim() != 2 or embedding.shape[1] == 0:
        raise ValueError(f"embedding must have shape (tokens, hidden_size) (got {tuple(embedding.shape)})")
    require_tensor("hidden", hidden)
    require_dtype("hidden", hidden, (embedding.dtype,))
    require_shape("hidden", hidden, embedding.shape)
    weights: dict[str, Any] = {"enorm_weight": enorm_weight, "hnorm_weight": hnorm_weight}
    for argument, weight in weights.items():
        require_tensor(argument, weight)
        require_dtype(argument, weight)
        require_shape(argument, weight, embedding.shape[1:])
    require_same_device(embedding=embedding, hidden=hidden, **weights)
    require_rotation(rotation, convention, embedding.shape[1], hidden, "hidden")
    chosen = choose(embedding, implementation)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no op that normalises two tensors into one")
    if chosen == "eager":
        return mtp_input_reference(
            embedding, hidden, enorm_weight, hnorm_weight,
            enorm_eps=enorm_eps, hnorm_eps=hnorm_eps, rotation=rotation, convention=convention,
        )  # fmt: skip
    refuse_gradients("fused_mtp_input", embedding=embedding, hidden=hidden, **weights, rotation=rotation)
    return norm_composite(embedding, unrotated(hidden, rotation, convention), enorm_weight, hnorm_weight, enorm_eps, hnorm_eps)


# The buffers are those of one of the kernel's two loops, which follow one another. The compile gate proves the sums.
@functools.cache
def _plan(target: Target, n_cols: int, itemsize: int, weight_itemsize: int) -> RowPlan:
    stream = Buffer(itemsize, streamed=True)
    weights = (Buffer(weight_itemsize, "columns"), Buffer(4, "columns")) * 2
    # With room, the output is staged in fp32 and the squares have a place of their own.
    roomy = (stream, Buffer(4, streamed=True), Buffer(4), *weights)
    resident = (stream, stream, Buffer(4), *weights)
    tiled = (stream, stream, Buffer(4), Buffer(4), Buffer(4, "columns", streamed=True))
    return plan_rows(target, n_cols, resident, tiled, roomy=roomy)


def _norm_kernel(embedding, hidden, enorm_weight, hnorm_weight, enorm_eps, hnorm_eps):
    out = _norm_fake(embedding, hidden, enorm_weight, hnorm_weight, enorm_eps, hnorm_eps)
    rows, n_cols = embedding.shape
    if rows == 0:
        return out
    target = target_of(embedding)
    embedding, hidden = (x if x.stride(1) == 1 else x.contiguous() for x in (embedding, hidden))
    # A column of a matrix, say: the kernel walks weights with stride 1.
    enorm_weight, hnorm_weight = enorm_weight.contiguous(), hnorm_weight.contiguous()
    widest = max(enorm_weight.element_size(), hnorm_weight.element_size())
    plan = _plan(target, n_cols, embedding.element_size(), widest)
    kernels = load_kernels("npu_op_mtp_input.kernel", target.backend)
    kernel, constants = kernels.mtp_input_wide_kernel, {}
    if plan.resident:
        kernel, constants = kernels.mtp_input_kernel, {"FOLD": plan.fold, "WEIGHT_RESIDENT": target.backend != "cuda"}
    launch(
        kernel, programs(target, plan.row_tiles(1, 2 * rows), persistent=False), target, embedding,
        embedding, hidden, enorm_weight, hnorm_weight, out, rows, embedding.stride(0), hidden.stride(0), enorm_eps, hnorm_eps,
        num_warps=plan.num_warps, n_cols=n_cols, ROWS=plan.rows, COLS=plan.cols, **constants,
    )  # fmt: skip
    return out


def _norm_reference(embedding, hidden, enorm_weight, hnorm_weight, enorm_eps, hnorm_eps):
    return mtp_input_reference(embedding, hidden, enorm_weight, hnorm_weight, enorm_eps=enorm_eps, hnorm_eps=hnorm_eps)


def _norm_fake(embedding, hidden, enorm_weight, hnorm_weight, enorm_eps, hnorm_eps):
    return embedding.new_empty(embedding.shape[0], 2 * embedding.shape[1])


norm_both = register_op(
    "npu_op_mtp_input",
    "norm_both(Tensor embedding, Tensor hidden, Tensor enorm_weight, Tensor hnorm_weight, float enorm_eps, float hnorm_eps) -> Tensor",
    kernel=_norm_kernel,
    reference=_norm_reference,
    fake=_norm_fake,
)
norm_composite = register_composite(
    "npu_op_mtp_input",
    "fused_mtp_input(Tensor embedding, Tensor hidden, Tensor enorm_weight, Tensor hnorm_weight, Scalar enorm_eps, Scalar hnorm_eps)"
    " -> Tensor",
    norm_both,
)
