"""Llama 4's rotary position embeddings: the public function, and the registered ops that it calls."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import remembered, require_choice, require_same_device, require_tensor
from npu_op_runtime.dtypes import FLOATS, require_dtype
from npu_op_runtime.rotary import require_heads
from npu_op_runtime.rotary_ops import register_rotation

from .reference import apply_llama4_rotary_reference


def apply_llama4_rotary(
    q: torch.Tensor, k: torch.Tensor | None, freqs_cis: torch.Tensor, *, inplace: bool = False, implementation: str | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotates pairs of neighbouring columns of q and k as complex numbers by freqs_cis, in fp32, rounded once.

    Args:
        q: (batch, sequence, heads, head_dim), fp16, bf16 or fp32; any layout whose last dimension is contiguous.
        k: as q with its own number of heads, or None.
        freqs_cis: cos + i * sin per pair, complex64 (sequence, head_dim / 2), (1, sequence, head_dim / 2) or (batch, sequence,
            head_dim / 2); or packed as real numbers cos, sin, cos, sin, ... of head_dim columns, fp16, bf16 or fp32. A constant.
        inplace: write the results over q and k and return those.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        q and k rotated, in their shapes, dtypes and memory orders; None for no k. Differentiable in q and k.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    return _apply(q, k, freqs_cis, inplace=inplace, implementation=implementation)


@remembered
def _check(q, k, freqs_cis, inplace):
    require_choice("inplace", inplace, (False, True))
    require_heads(q, k, 2)
    require_tensor("freqs_cis", freqs_cis)
    require_dtype("freqs_cis", freqs_cis, (torch.complex64, *FLOATS))
    if freqs_cis.requires_grad:
        raise ValueError("freqs_cis must not require a gradient: it is a constant (implementation='eager' differentiates it)")
    _require_frequencies(q, freqs_cis)
    require_same_device(q=q, k=k, freqs_cis=freqs_cis)


def _require_frequencies(q: torch.Tensor, freqs_cis: torch.Tensor) -> None:
    batch, sequence, _, width = q.shape
    if width % 2 or width == 0:
        raise ValueError(f"q must have an even head_dim (got {width})")
    columns = width // 2 if freqs_cis.is_complex() else width
    allowed = ((sequence, columns), (1, sequence, columns), (batch, sequence, columns))
    if tuple(freqs_cis.shape) not in allowed:
        raise ValueError(f"freqs_cis must have shape {allowed[0]}, {allowed[1]} or {allowed[2]} (got {tuple(freqs_cis.shape)})")


def _rotation(q, freqs):
    return {
        "module": "npu_op_llama4_rope.kernel", "name": "llama4_rotary_kernel", "angles": (freqs,), "half": q.shape[-1] // 2,
        "heads_dim": 2, "interleaved": True,
    }  # fmt: skip


def _packed(freqs_cis):
    return (torch.view_as_real(freqs_cis.resolve_conj()).flatten(-2) if freqs_cis.is_complex() else freqs_cis,)


def _vendor(*arguments):
    raise NotImplementedError("implementation='vendor' cannot run: no op of torch_npu takes complex frequencies")


def _transposed(freqs):
    # Conjugate numbers.
    return ((freqs.unflatten(-1, (freqs.shape[-1] // 2, 2)) * freqs.new_tensor([1, -1])).flatten(-2),)


_apply = register_rotation(
    "npu_op_llama4_rope",
    "Tensor freqs",
    check=_check,
    rotation=_rotation,
    formula=apply_llama4_rotary_reference,
    transposed=_transposed,
    vendor=_vendor,
    prepared=_packed,
)
