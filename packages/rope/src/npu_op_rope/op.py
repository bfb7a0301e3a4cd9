"""Rotary position embeddings: the public function, and the registered ops that it calls."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import remembered, require_choice, require_same_device, require_shape, require_tensor
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.rotary import require_heads
from npu_op_runtime.rotary_ops import register_rotation

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
    return _apply(q, k, cos, sin, interleaved, unsqueeze_dim, inplace=inplace, implementation=implementation)


@remembered
def _check(q, k, cos, sin, interleaved, unsqueeze_dim, inplace):
    require_choice("interleaved", interleaved, (False, True))
    require_choice("unsqueeze_dim", unsqueeze_dim, (1, 2))
    require_choice("inplace", inplace, (False, True))
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


def _require_angles(q: torch.Tensor, cos: torch.Tensor, unsqueeze_dim: int) -> None:
    batch, sequence, width = q.shape[0], q.shape[3 - unsqueeze_dim], q.shape[3]
    if cos.dim() not in (2, 3) or cos.shape[-2] != sequence or (cos.dim() == 3 and cos.shape[0] not in (1, batch)):
        raise ValueError(
            f"cos must have shape ({sequence}, columns), (1, {sequence}, columns) or ({batch}, {sequence}, columns)"
            f" (got {tuple(cos.shape)})"
        )
    if cos.shape[-1] % 2 or not 0 < cos.shape[-1] <= width:
        raise ValueError(f"cos must have an even number of columns, at most the head_dim of q, {width} (got {cos.shape[-1]})")


def _rotation(q, cos, sin, interleaved, unsqueeze_dim):
    return {
        "module": "npu_op_rope.kernel", "name": "rotary_kernel", "angles": (cos, sin), "half": cos.shape[-1] // 2,
        "heads_dim": unsqueeze_dim, "interleaved": interleaved,
    }  # fmt: skip


def _formula(q, k, cos, sin, interleaved, unsqueeze_dim):
    return apply_rotary_reference(q, k, cos, sin, interleaved=interleaved, unsqueeze_dim=unsqueeze_dim)


def _vendor(q, k, cos, sin, interleaved, unsqueeze_dim):
    return apply_rotary_vendor(q, k, cos, sin, interleaved=interleaved, unsqueeze_dim=unsqueeze_dim)


def _transposed(cos, sin, interleaved, unsqueeze_dim):
    # The other member of a pair takes the sine, with the other sign.
    pairs = sin.shape[-1] // 2
    swapped = sin.unflatten(-1, (pairs, 2)).flip(-1).flatten(-2) if interleaved else sin.roll(pairs, -1)
    return cos, -swapped, interleaved, unsqueeze_dim


_apply = register_rotation(
    "npu_op_rope",
    "Tensor cos, Tensor sin, bool interleaved, int unsqueeze_dim",
    check=_check,
    rotation=_rotation,
    formula=_formula,
    transposed=_transposed,
    vendor=_vendor,
)
