"""The registered op of split and RMSNorm, and the public function."""

from __future__ import annotations

import functools
from typing import Any

import torch

from npu_op_runtime.autograd import refuse_gradients
from npu_op_runtime.checks import require_number, require_same_device, require_shape, require_tensor, require_width
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.launch import launch, load_kernels
from npu_op_runtime.registration import register_composite, register_op
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer, RowPlan, next_power_of_2, plan_rows, programs

from .reference import split_qk_norm_reference


def fused_split_qk_norm(
    fused_qkv_a: torch.Tensor,
    q_weight: torch.Tensor,
    kv_weight: torch.Tensor,
    *,
    q_lora_rank: int,
    kv_lora_rank: int,
    qk_rope_dim: int,
    q_eps: float,
    kv_eps: float,
    q_bias: torch.Tensor | None = None,
    kv_bias: torch.Tensor | None = None,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Parts the rows of a latent projection into q | kv | rope and normalises the first two, each with its own weight and eps.

    A part x gives x / sqrt(mean(x^2) + eps) times the weight (plus the bias) in fp32, rounded once to its dtype; the rope columns are
    copied. transformers' DeepseekV3RMSNorm, and implementation="eager", round fp16 and bf16 before the weight too.

    Args:
        fused_qkv_a: (tokens, q_lora_rank + kv_lora_rank + qk_rope_dim), fp16, bf16 or fp32; rows may lie apart.
        q_weight, kv_weight: (q_lora_rank,) and (kv_lora_rank,), fp16, bf16 or fp32 (may differ from the projection).
        q_lora_rank, kv_lora_rank: widths of the parts, any from 1.
        qk_rope_dim: width of the last part, from 0.
        q_eps, kv_eps: of the model's two norms, added to the mean squares; there is no default on purpose.
        q_bias, kv_bias: as the weights, or None.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        q_lora (tokens, q_lora_rank), k_nope (tokens, 1, kv_lora_rank), k_pe (tokens, 1, qk_rope_dim): new, contiguous, in the dtype
        of the projection. For inference: only implementation="eager" is differentiable.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a gradient is asked for, or a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_width("q_lora_rank", q_lora_rank)
    require_width("kv_lora_rank", kv_lora_rank)
    require_width("qk_rope_dim", qk_rope_dim, least=0)
    require_number("q_eps", q_eps)
    require_number("kv_eps", kv_eps)
    require_tensor("fused_qkv_a", fused_qkv_a)
    require_dtype("fused_qkv_a", fused_qkv_a)
    width = q_lora_rank + kv_lora_rank + qk_rope_dim
    if fused_qkv_a.dim() != 2 or fused_qkv_a.shape[1] != width:
        raise ValueError(
            f"fused_qkv_a must have shape (tokens, {width}), q_lora_rank + kv_lora_rank + qk_rope_dim (got {tuple(fused_qkv_a.shape)})"
        )
    parameters: dict[str, Any] = {"q_weight": q_weight, "kv_weight": kv_weight, "q_bias": q_bias, "kv_bias": kv_bias}
    for argument, parameter in parameters.items():
        if parameter is None and argument.endswith("bias"):
            continue
        require_tensor(argument, parameter)
        require_dtype(argument, parameter)
        require_shape(argument, parameter, (q_lora_rank if argument.startswith("q") else kv_lora_rank,))
    require_same_device(fused_qkv_a=fused_qkv_a, **parameters)
    chosen = choose(fused_qkv_a, implementation)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no op that splits and normalises")
    if chosen == "eager":
        return split_qk_norm_reference(
            fused_qkv_a, q_weight, kv_weight, q_lora_rank=q_lora_rank, kv_lora_rank=kv_lora_rank, qk_rope_dim=qk_rope_dim,
            q_eps=q_eps, kv_eps=kv_eps, q_bias=q_bias, kv_bias=kv_bias,
        )  # fmt: skip
    refuse_gradients("fused_split_qk_norm", fused_qkv_a=fused_qkv_a, **parameters)
    return split_composite(fused_qkv_a, q_weight, kv_weight, q_bias, kv_bias, q_eps, kv_eps)


# The buffers are those of kernel.py, over the columns of all parts. The compile gate proves the sums.
@functools.cache
def _plan(target: Target, columns: int, itemsize: int, weight_itemsize: int, biases: bool) -> RowPlan:
    stream, parameters = Buffer(itemsize, streamed=True), 2 if biases else 1
    vectors = (Buffer(weight_itemsize, "columns"), Buffer(4, "columns")) * parameters
    # With room, outputs are staged in fp32 and the squares have a place of their own.
    roomy = (stream, Buffer(4, streamed=True), Buffer(4), *vectors)
    resident = (stream, stream, Buffer(4), *vectors, Buffer(4, "columns"), Buffer(4, "rows"))
    tiled = (stream, stream, Buffer(4), Buffer(4), *(Buffer(4, "columns", streamed=True),) * parameters)
    # One less than whole blocks: it rounds up to them, and a row is never folded, since pieces would not end where its parts do.
    return plan_rows(target, columns - 1, resident, tiled, roomy=roomy)


def _block(target: Target, width: int, itemsize: int) -> int:
    if target.backend == "cuda":
        return next_power_of_2(width)
    granule = UB_BLOCK_BYTES // itemsize
    return -(-width // granule) * granule


def _split_kernel(fused, q_weight, kv_weight, q_bias, kv_bias, q_eps, kv_eps):
    outputs = _split_fake(fused, q_weight, kv_weight, q_bias, kv_bias, q_eps, kv_eps)
    rows = fused.shape[0]
    if rows == 0:
        return outputs
    target = target_of(fused)
    itemsize = fused.element_size()
    fused = fused if fused.stride(1) == 1 else fused.contiguous()
    # A column of a matrix, say: the kernel walks parameters with stride 1.
    parameters = [None if parameter is None else parameter.contiguous() for parameter in (q_weight, kv_weight, q_bias, kv_bias)]
    widest = max(parameter.element_size() for parameter in parameters if parameter is not None)
    widths = [output.shape[-1] for output in outputs]
    blocks = [_block(target, width, itemsize) if width else 0 for width in widths]
    biases = [bias is not None for bias in (q_bias, kv_bias)]
    plan = _plan(target, sum(blocks), itemsize, widest, any(biases))
    kernels = load_kernels("npu_op_split_qk_norm.kernel", target.backend)
    kernel, constants = kernels.split_qk_norm_wide_kernel, {"COLS": plan.cols}
    if plan.resident:
        kernel = kernels.split_qk_norm_kernel
        constants = dict(zip(("Q_COLS", "KV_COLS", "PE_COLS"), blocks)) | {"PARAMETERS_RESIDENT": target.backend != "cuda"}
    launch(
        kernel, programs(target, plan.row_tiles(1, rows), persistent=False), target, fused,
        fused, *parameters, *outputs, rows, fused.stride(0), q_eps, kv_eps, num_warps=plan.num_warps,
        Q=widths[0], KV=widths[1], PE=widths[2], ROWS=plan.rows, HAS_Q_BIAS=biases[0], HAS_KV_BIAS=biases[1], **constants,
    )  # fmt: skip
    return outputs


def _split_reference(fused, q_weight, kv_weight, q_bias, kv_bias, q_eps, kv_eps):
    q, kv = q_weight.shape[0], kv_weight.shape[0]
    return split_qk_norm_reference(
        fused, q_weight, kv_weight, q_lora_rank=q, kv_lora_rank=kv, qk_rope_dim=fused.shape[1] - q - kv,
        q_eps=q_eps, kv_eps=kv_eps, q_bias=q_bias, kv_bias=kv_bias,
    )  # fmt: skip


def _split_fake(fused, q_weight, kv_weight, q_bias, kv_bias, q_eps, kv_eps):
    rows, q, kv = fused.shape[0], q_weight.shape[0], kv_weight.shape[0]
    return fused.new_empty(rows, q), fused.new_empty(rows, 1, kv), fused.new_empty(rows, 1, fused.shape[1] - q - kv)


split = register_op(
    "npu_op_split_qk_norm",
    "split(Tensor fused, Tensor q_weight, Tensor kv_weight, Tensor? q_bias, Tensor? kv_bias, float q_eps, float kv_eps)"
    " -> (Tensor q_lora, Tensor k_nope, Tensor k_pe)",
    kernel=_split_kernel,
    reference=_split_reference,
    fake=_split_fake,
)
split_composite = register_composite(
    "npu_op_split_qk_norm",
    "fused_split_qk_norm(Tensor fused, Tensor q_weight, Tensor kv_weight, Tensor? q_bias, Tensor? kv_bias, Scalar q_eps, Scalar kv_eps)"
    " -> (Tensor q_lora, Tensor k_nope, Tensor k_pe)",
    split,
)
