"""The vendor's fused op as a named implementation: torch_npu.npu_rotary_mul, one launch for q and one for k."""

from __future__ import annotations

import torch

# Limits of npu_rotary_mul in torch_npu 2.14's operator documentation.
_MAX_HEAD_DIM = 896
_MAX_BATCH_AND_HEADS = 1000


def apply_rotary_vendor(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """npu_rotary_mul(x, cos, sin, mode); differentiable by torch_npu itself.

    Raises:
        NotImplementedError: a case outside its contract.
    """
    heads = max(tensor.shape[unsqueeze_dim] for tensor in (q, k) if tensor is not None)
    limits = (
        (q.device.type != "npu", f"it needs an NPU tensor (got {q.device.type})"),
        (cos.shape[-1] != q.shape[-1], "it rotates all columns"),
        (cos.dtype != q.dtype, "cos and sin must have the dtype of q"),
        (q.shape[-1] >= _MAX_HEAD_DIM, f"head_dim must be below {_MAX_HEAD_DIM} (got {q.shape[-1]})"),
        (max(q.shape[0], heads) >= _MAX_BATCH_AND_HEADS, f"batch and heads must be below {_MAX_BATCH_AND_HEADS}"),
    )
    for outside, reason in limits:
        if outside:
            raise NotImplementedError(f"implementation='vendor' (torch_npu.npu_rotary_mul) cannot run: {reason}")
    import torch_npu

    if cos.dim() == 2:
        cos, sin = cos.unsqueeze(0), sin.unsqueeze(0)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    mode = "interleave" if interleaved else "half"
    return tuple(None if x is None else torch_npu.npu_rotary_mul(x, cos, sin, mode) for x in (q, k))  # type: ignore[return-value]
