"""The registered op of Qwen2-VL's multimodal rotary embeddings, its autograd Function and the public function."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice, require_same_device, require_shape, require_tensor
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.inplace import overwrite
from npu_op_runtime.registration import reference_gradients, register_op
from npu_op_runtime.rotary import contiguous_heads, launch_rotation, require_heads, require_overwritable

from .reference import apply_multimodal_rotary_reference


def apply_multimodal_rotary(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mrope_section: Sequence[int],
    unsqueeze_dim: int = 1,
    *,
    inplace: bool = False,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q * cos + turn(q) * sin, and the same for k, with cos and sin composed of three axes; computed in fp32 and rounded once.

    Args:
        q: (batch, heads, sequence, head_dim) with `unsqueeze_dim` 1, (batch, sequence, heads, head_dim) with 2; fp16, bf16 or fp32;
            any layout whose last dimension is contiguous, transposed views too.
        k: as q with its own number of heads, or None.
        cos, sin: (3, batch, sequence, head_dim), fp16, bf16 or fp32: temporal, height, width. Constants.
        mrope_section: columns of each half that temporal, height and width take, in this order; they sum to head_dim / 2.
        unsqueeze_dim: where the dimension of heads is, as in transformers.
        inplace: write the results over q and k and return those.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        q and k rotated, in their shapes, dtypes and memory orders; None for no k. Differentiable in q and k.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_choice("unsqueeze_dim", unsqueeze_dim, (1, 2))
    sections = checked_sections(mrope_section)
    require_heads(q, k, unsqueeze_dim)
    width = q.shape[-1]
    if 2 * sum(sections) != width:
        raise ValueError(f"mrope_section must sum to half of the head_dim of q, {width / 2:g} (got {sections})")
    for argument, angle in (("cos", cos), ("sin", sin)):
        require_tensor(argument, angle)
        require_dtype(argument, angle)
        require_shape(argument, angle, (3, q.shape[0], q.shape[3 - unsqueeze_dim], width))
        if angle.requires_grad:
            raise ValueError(f"{argument} must not require a gradient: it is a constant (implementation='eager' differentiates it)")
    require_same_device(q=q, k=k, cos=cos, sin=sin)
    if inplace:
        require_overwritable(q=q, k=k)
    chosen = choose(q, implementation)
    if chosen == "eager":
        rotated = apply_multimodal_rotary_reference(q, k, cos, sin, sections, unsqueeze_dim)
        if not inplace:
            return rotated
        overwrite((q, k), rotated)
        return q, k
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu.npu_mrope takes positions and a cache, not cos and sin")
    if tracked(q, k):
        return _MultimodalRotary.apply(q, k, cos, sin, sections, unsqueeze_dim, inplace)
    if inplace:
        rotate_inplace(q, k, cos, sin, sections, unsqueeze_dim)
        return q, k
    q_out, k_out = rotate(q, k, cos, sin, sections, unsqueeze_dim, False)
    return q_out, None if k is None else k_out


def checked_sections(mrope_section: Sequence[int]) -> list[int]:
    """`mrope_section` as a list.

    Raises:
        TypeError, ValueError: it is not three sizes.
    """
    if not isinstance(mrope_section, (list, tuple)) or not all(type(section) is int for section in mrope_section):
        raise TypeError(f"mrope_section must be a list or tuple of three int (got {mrope_section!r})")
    if len(mrope_section) != 3 or min(mrope_section) < 0:
        raise ValueError(f"mrope_section must be three sizes, none below 0 (got {list(mrope_section)})")
    return list(mrope_section)


class _MultimodalRotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin, sections, unsqueeze_dim, inplace):
        ctx.save_for_backward(cos, sin)
        ctx.layout = sections, unsqueeze_dim
        ctx.set_materialize_grads(False)
        if inplace:
            rotate_inplace(q, k, cos, sin, sections, unsqueeze_dim)
            ctx.mark_dirty(*[tensor for tensor in (q, k) if tensor is not None])
            rotated = q, k
        else:
            q_out, k_out = rotate(q, k, cos, sin, sections, unsqueeze_dim, False)
            rotated = q_out, None if k is None else k_out
        frozen = [out for out, needed in zip(rotated, ctx.needs_input_grad) if out is not None and not needed]
        ctx.mark_non_differentiable(*frozen)
        return rotated

    @staticmethod
    @once_differentiable
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        dq, dk = (gradient if needed else None for gradient, needed in zip((dq, dk), ctx.needs_input_grad))
        if dq is None and dk is not None:
            dk, _ = rotate(dk, None, cos, sin, *ctx.layout, True)
        elif dq is not None:
            dq, dk_out = rotate(dq, dk, cos, sin, *ctx.layout, True)
            dk = None if dk is None else dk_out
        return dq, dk, None, None, None, None, None


def _run(q, k, q_out, k_out, cos, sin, sections, unsqueeze_dim, inverse):
    cos, sin = contiguous_heads(cos, sin)
    heads = tuple(tensor if tensor is None or unsqueeze_dim == 2 else tensor.transpose(1, 2) for tensor in (q, k))
    outs = heads if q_out is q else tuple(t if t is None or unsqueeze_dim == 2 else t.transpose(1, 2) for t in (q_out, k_out))
    launch_rotation(
        "npu_op_qwen2vl_mrope.kernel", "multimodal_rotary_kernel", (*heads, *outs), (cos[0], sin[0]), q.shape[-1] // 2,
        cos.stride(0), sin.stride(0), interleaved=False, inverse=inverse, TEMPORAL=sections[0], HEIGHT=sections[1],
    )  # fmt: skip


def _rotate_kernel(q, k, cos, sin, sections, unsqueeze_dim, inverse):
    q_out, k_out = _rotate_fake(q, k, cos, sin, sections, unsqueeze_dim, inverse)
    q, k = contiguous_heads(q, k)
    _run(q, k, q_out, None if k is None else k_out, cos, sin, sections, unsqueeze_dim, inverse)
    return q_out, k_out


def _rotate_reference(q, k, cos, sin, sections, unsqueeze_dim, inverse):
    outputs = _rotate_fake(q, k, cos, sin, sections, unsqueeze_dim, inverse)

    def formula(x: torch.Tensor) -> torch.Tensor:
        return apply_multimodal_rotary_reference(x, None, cos, sin, sections, unsqueeze_dim)[0]

    for out, x in zip(outputs, (q, k)):
        if x is not None:
            # The formula is linear: its transpose is its gradient, at any point.
            out.copy_(reference_gradients(formula, (torch.empty_like(x),), x, (True,))[0] if inverse else formula(x))
    return outputs


def _rotate_fake(q, k, cos, sin, sections, unsqueeze_dim, inverse):
    return torch.empty_like(q), q.new_empty(0) if k is None else torch.empty_like(k)


def _inplace_kernel(q, k, cos, sin, sections, unsqueeze_dim):
    _run(q, k, q, k, cos, sin, sections, unsqueeze_dim, False)


def _inplace_reference(q, k, cos, sin, sections, unsqueeze_dim):
    overwrite((q, k), apply_multimodal_rotary_reference(q, k, cos, sin, sections, unsqueeze_dim))


def _inplace_fake(q, k, cos, sin, sections, unsqueeze_dim):
    return None


rotate = register_op(
    "npu_op_qwen2vl_mrope",
    "rotate(Tensor q, Tensor? k, Tensor cos, Tensor sin, int[] sections, int unsqueeze_dim, bool inverse) -> (Tensor q_out, Tensor k_out)",
    kernel=_rotate_kernel,
    reference=_rotate_reference,
    fake=_rotate_fake,
)
rotate_inplace = register_op(
    "npu_op_qwen2vl_mrope",
    "rotate_(Tensor(a!) q, Tensor(b!)? k, Tensor cos, Tensor sin, int[] sections, int unsqueeze_dim) -> ()",
    kernel=_inplace_kernel,
    reference=_inplace_reference,
    fake=_inplace_fake,
)
