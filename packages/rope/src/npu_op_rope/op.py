"""The registered ops of rotary position embeddings, their autograd Function and the public function."""

from __future__ import annotations

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice, require_same_device, require_shape, require_tensor
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.inplace import overwrite
from npu_op_runtime.registration import reference_gradients, register_op
from npu_op_runtime.rotary import contiguous_heads, launch_rotation, require_heads, require_overwritable

from .reference import apply_rotary_reference
from .vendor import apply_rotary_vendor


def apply_rotary(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    unsqueeze_dim: int = 1,
    inplace: bool = False,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q * cos + turn(q) * sin, and the same for k, computed in fp32 and rounded once.

    Args:
        q: (batch, heads, sequence, head_dim) with `unsqueeze_dim` 1, (batch, sequence, heads, head_dim) with 2; fp16, bf16 or fp32;
            any layout whose last dimension is contiguous, transposed views too.
        k: as q with its own number of heads, or None.
        cos, sin: (sequence, columns), (1, sequence, columns) or (batch, sequence, columns), fp16, bf16 or fp32. With fewer columns than
            head_dim the columns of q and k behind them pass through. Treated as constants.
        interleaved: rotate pairs of neighbouring columns instead of pairs a half apart.
        unsqueeze_dim: where the dimension of heads is, as in transformers.
        inplace: write the results over q and k and return those.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton", "vendor"
            (torch_npu.npu_rotary_mul) or "eager".

    Returns:
        q and k rotated, in their shapes, dtypes and memory orders; None for no k. Differentiable in q and k.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_choice("unsqueeze_dim", unsqueeze_dim, (1, 2))
    require_heads(q, k, unsqueeze_dim)
    for argument, angle in (("cos", cos), ("sin", sin)):
        require_tensor(argument, angle)
        require_dtype(argument, angle)
        if angle.requires_grad:
            raise ValueError(
                f"{argument} must not require a gradient: cos and sin are constants (implementation='eager' differentiates them)"
            )
    _require_angles(q, cos, unsqueeze_dim)
    require_shape("sin", sin, cos.shape)
    require_same_device(q=q, k=k, cos=cos, sin=sin)
    if inplace:
        require_overwritable(q=q, k=k)
    chosen = choose(q, implementation)
    if chosen == "triton":
        if tracked(q, k):
            return _Rotary.apply(q, k, cos, sin, interleaved, unsqueeze_dim, inplace)
        if inplace:
            rotate_inplace(q, k, cos, sin, interleaved, unsqueeze_dim)
            return q, k
        q_out, k_out = rotate(q, k, cos, sin, interleaved, unsqueeze_dim, False)
        return q_out, None if k is None else k_out
    formula = apply_rotary_reference if chosen == "eager" else apply_rotary_vendor
    rotated = formula(q, k, cos, sin, interleaved=interleaved, unsqueeze_dim=unsqueeze_dim)
    if not inplace:
        return rotated
    overwrite((q, k), rotated)
    return q, k


def _require_angles(q: torch.Tensor, cos: torch.Tensor, unsqueeze_dim: int) -> None:
    batch, sequence, width = q.shape[0], q.shape[3 - unsqueeze_dim], q.shape[3]
    if cos.dim() not in (2, 3) or cos.shape[-2] != sequence or (cos.dim() == 3 and cos.shape[0] not in (1, batch)):
        raise ValueError(
            f"cos must have shape ({sequence}, columns), (1, {sequence}, columns) or ({batch}, {sequence}, columns)"
            f" (got {tuple(cos.shape)})"
        )
    if cos.shape[-1] % 2 or not 0 < cos.shape[-1] <= width:
        raise ValueError(f"cos must have an even number of columns, at most the head_dim of q, {width} (got {cos.shape[-1]})")


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin, interleaved, unsqueeze_dim, inplace):
        ctx.save_for_backward(cos, sin)
        ctx.layout = interleaved, unsqueeze_dim
        ctx.set_materialize_grads(False)
        if inplace:
            rotate_inplace(q, k, cos, sin, interleaved, unsqueeze_dim)
            ctx.mark_dirty(*[tensor for tensor in (q, k) if tensor is not None])
            rotated = q, k
        else:
            q_out, k_out = rotate(q, k, cos, sin, interleaved, unsqueeze_dim, False)
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


def _run(q, k, q_out, k_out, cos, sin, interleaved, unsqueeze_dim, inverse):
    heads = tuple(tensor if tensor is None or unsqueeze_dim == 2 else tensor.transpose(1, 2) for tensor in (q, k))
    outs = heads if q_out is q else tuple(t if t is None or unsqueeze_dim == 2 else t.transpose(1, 2) for t in (q_out, k_out))
    angles = [angle.unsqueeze(0) if angle.dim() == 2 else angle for angle in (cos, sin)]
    launch_rotation(
        "npu_op_rope.kernel", "rotary_kernel", (*heads, *outs), angles, cos.shape[-1] // 2, interleaved=interleaved, inverse=inverse
    )


def _rotate_kernel(q, k, cos, sin, interleaved, unsqueeze_dim, inverse):
    q_out, k_out = _rotate_fake(q, k, cos, sin, interleaved, unsqueeze_dim, inverse)
    q, k, cos, sin = contiguous_heads(q, k, cos, sin)
    _run(q, k, q_out, None if k is None else k_out, cos, sin, interleaved, unsqueeze_dim, inverse)
    return q_out, k_out


def _rotate_reference(q, k, cos, sin, interleaved, unsqueeze_dim, inverse):
    outputs = _rotate_fake(q, k, cos, sin, interleaved, unsqueeze_dim, inverse)
    for out, x in zip(outputs, (q, k)):
        if x is None:
            continue

        def formula(x: torch.Tensor) -> torch.Tensor:
            return apply_rotary_reference(x, None, cos, sin, interleaved=interleaved, unsqueeze_dim=unsqueeze_dim)[0]

        # The formula is linear: its transpose is its gradient, at any point.
        out.copy_(reference_gradients(formula, (torch.empty_like(x),), x, (True,))[0] if inverse else formula(x))
    return outputs


def _rotate_fake(q, k, cos, sin, interleaved, unsqueeze_dim, inverse):
    return torch.empty_like(q), q.new_empty(0) if k is None else torch.empty_like(k)


def _inplace_kernel(q, k, cos, sin, interleaved, unsqueeze_dim):
    cos, sin = contiguous_heads(cos, sin)
    _run(q, k, q, k, cos, sin, interleaved, unsqueeze_dim, False)


def _inplace_reference(q, k, cos, sin, interleaved, unsqueeze_dim):
    overwrite((q, k), apply_rotary_reference(q, k, cos, sin, interleaved=interleaved, unsqueeze_dim=unsqueeze_dim))


def _inplace_fake(q, k, cos, sin, interleaved, unsqueeze_dim):
    return None


rotate = register_op(
    "npu_op_rope",
    "rotate(Tensor q, Tensor? k, Tensor cos, Tensor sin, bool interleaved, int unsqueeze_dim, bool inverse)"
    " -> (Tensor q_out, Tensor k_out)",
    kernel=_rotate_kernel,
    reference=_rotate_reference,
    fake=_rotate_fake,
)
rotate_inplace = register_op(
    "npu_op_rope",
    "rotate_(Tensor(a!) q, Tensor(b!)? k, Tensor cos, Tensor sin, bool interleaved, int unsqueeze_dim) -> ()",
    kernel=_inplace_kernel,
    reference=_inplace_reference,
    fake=_inplace_fake,
)
