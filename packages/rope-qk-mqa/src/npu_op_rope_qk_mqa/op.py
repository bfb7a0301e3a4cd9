"""The registered ops of the rotary embedding of latent attention, and the public function."""

from __future__ import annotations

from typing import NamedTuple

import torch

from npu_op_runtime.autograd import refuse_gradients
from npu_op_runtime.checks import require_choice, require_same_device, require_shape, require_tensor, require_width
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.registration import register_op
from npu_op_runtime.rotary import launch_rotation, require_overwritable

from .reference import rope_qk_mqa_reference


def fused_rope_qk_mqa(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool,
    rotary_dim: int | None = None,
    inplace: bool = False,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates the first `rotary_dim` columns of every head of q and k by the angles of its token, in fp32, rounded once.

    Args:
        q: (tokens, heads, head_dim), fp16, bf16 or fp32; any layout whose last dimension is contiguous, such as the rotary columns of a
            wider head.
        k: (tokens, its own heads, head_dim) or, of one head, (tokens, head_dim); dtype of q.
        cos, sin: (tokens, rotary_dim / 2), one angle for each pair, fp16, bf16 or fp32. Of a transformers model, whose cos repeats
            itself: `cos[:, : rotary_dim // 2]`.
        interleaved: pairs are neighbouring columns, and stay so; otherwise columns a half of rotary_dim apart.
        rotary_dim: None for head_dim; columns behind it pass through.
        inplace: write the results over q and k and return those; they may be columns of one tensor, but share no element.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        q and k rotated, in their shapes and dtypes. For inference: only implementation="eager" is differentiable.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a gradient is asked for, or a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_choice("interleaved", interleaved, (False, True))
    require_choice("inplace", inplace, (False, True))
    _require_heads(q, k)
    width = q.shape[-1]
    rotary_dim = width if rotary_dim is None else rotary_dim
    require_width("rotary_dim", rotary_dim, least=2)
    if rotary_dim % 2 or rotary_dim > width:
        raise ValueError(f"rotary_dim must be even and at most the head_dim of q, {width} (got {rotary_dim})")
    for argument, angle in (("cos", cos), ("sin", sin)):
        require_tensor(argument, angle)
        require_dtype(argument, angle)
        require_shape(argument, angle, (q.shape[0], rotary_dim // 2))
    require_same_device(q=q, k=k, cos=cos, sin=sin)
    if inplace:
        require_overwritable(q=q, k=k)
    chosen = choose(q, implementation)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: no op of torch_npu takes q and k of different numbers of heads")
    if chosen == "eager":
        rotated = rope_qk_mqa_reference(q, k, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim)
        return (q.copy_(rotated[0]), k.copy_(rotated[1])) if inplace else rotated
    refuse_gradients("fused_rope_qk_mqa", q=q, k=k, cos=cos, sin=sin)
    if inplace:
        rotate_inplace(q, k, cos, sin, interleaved)
        return q, k
    rotated_q, rotated_k = rotate(q, k, cos, sin, interleaved)
    return rotated_q, rotated_k


def _require_heads(q: torch.Tensor, k: torch.Tensor) -> None:
    for argument, tensor in (("q", q), ("k", k)):
        require_tensor(argument, tensor)
    require_dtype("q", q)
    require_dtype("k", k, (q.dtype,))
    if q.dim() != 3:
        raise ValueError(f"q must have three dimensions, (tokens, heads, head_dim) (got shape {tuple(q.shape)})")
    tokens, _, width = q.shape
    if k.dim() not in (2, 3) or (k.shape[0], k.shape[-1]) != (tokens, width):
        raise ValueError(f"k must have shape ({tokens}, heads, {width}) or ({tokens}, {width}) (got {tuple(k.shape)})")
    for argument, tensor in (("q", q), ("k", k)):
        if 0 in tensor.shape[1:]:
            raise ValueError(f"{argument} must have a head and a column at least (got shape {tuple(tensor.shape)})")


class _Rows(NamedTuple):
    """Where a tensor lies: its first byte, bytes from the first of a token to its last, and to the next token."""

    start: int
    width: int
    step: int
    tokens: int

    @property
    def end(self) -> int:
        return self.start + self.width + (self.tokens - 1) * self.step


def _require_apart(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """No element of q or k, which are written, is one of another tensor: programs would read what others have written."""
    tensors = {"q": q, "k": k, "cos": cos, "sin": sin}
    q_storage, *storages = [tensor.untyped_storage().data_ptr() for tensor in tensors.values()]
    if q_storage not in storages and storages[0] not in storages[1:]:
        return
    rows = {argument: _rows(tensor) for argument, tensor in tensors.items() if tensor.numel()}
    for argument, other in (("k", "q"), ("cos", "q"), ("cos", "k"), ("sin", "q"), ("sin", "k")):
        if argument in rows and other in rows and _meet(rows[argument], rows[other]):
            raise ValueError(f"{argument} must share no element with {other}, which is written in place")


def _meet(one: _Rows, two: _Rows) -> bool:
    """Their spans do, and they are not columns side by side of the same rows."""
    between = (one.start - two.start) % one.step if one.step else 0
    side_by_side = one.step == two.step and two.width <= between <= one.step - one.width
    return one.start < two.end and two.start < one.end and not side_by_side


def _rows(x: torch.Tensor) -> _Rows:
    itemsize, (tokens, *inner), (step, *strides) = x.element_size(), x.shape, x.stride()
    width = 1 + sum([(size - 1) * stride for size, stride in zip(inner, strides)])
    return _Rows(x.data_ptr(), width * itemsize, step * itemsize, tokens)


def _run(q, k, q_out, k_out, cos, sin, interleaved):
    """One batch of tokens; k without a dimension of heads has one."""
    q, q_out = q.unsqueeze(0), None if q_out is None else q_out.unsqueeze(0)
    k, k_out = (None if x is None else (x if x.dim() == 3 else x.unsqueeze(1)).unsqueeze(0) for x in (k, k_out))
    launch_rotation(
        "npu_op_rope_qk_mqa.kernel", "rope_qk_mqa_kernel", (q, k, q if q_out is None else q_out, k if k_out is None else k_out),
        (cos, sin), cos.shape[-1], heads_dim=2, interleaved=interleaved, inverse=False, k_apart=True,
    )  # fmt: skip


def _rotate_kernel(q, k, cos, sin, interleaved):
    q_out, k_out = _rotate_fake(q, k, cos, sin, interleaved)
    _run(q, k, q_out, k_out, cos, sin, interleaved)
    return q_out, k_out


def _rotate_reference(q, k, cos, sin, interleaved):
    outputs = _rotate_fake(q, k, cos, sin, interleaved)
    for out, x in zip(outputs, rope_qk_mqa_reference(q, k, cos, sin, interleaved=interleaved, rotary_dim=2 * cos.shape[-1])):
        out.copy_(x)
    return outputs


def _rotate_fake(q, k, cos, sin, interleaved):
    return torch.empty_like(q), torch.empty_like(k)


def _inplace_kernel(q, k, cos, sin, interleaved):
    _require_apart(q, k, cos, sin)
    _run(q, k, None, None, cos, sin, interleaved)


def _inplace_reference(q, k, cos, sin, interleaved):
    _require_apart(q, k, cos, sin)
    for out, x in zip((q, k), rope_qk_mqa_reference(q, k, cos, sin, interleaved=interleaved, rotary_dim=2 * cos.shape[-1])):
        out.copy_(x)


def _inplace_fake(q, k, cos, sin, interleaved):
    return None


rotate = register_op(
    "npu_op_rope_qk_mqa",
    "rotate(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor q_out, Tensor k_out)",
    kernel=_rotate_kernel,
    reference=_rotate_reference,
    fake=_rotate_fake,
)
rotate_inplace = register_op(
    "npu_op_rope_qk_mqa",
    "rotate_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, bool interleaved) -> ()",
    kernel=_inplace_kernel,
    reference=_inplace_reference,
    fake=_inplace_fake,
)
