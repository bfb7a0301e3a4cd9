"""The vendor's fused op as a named implementation: torch_npu.npu_rms_norm."""

from __future__ import annotations

import torch


def rms_norm_vendor(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> torch.Tensor:
    """npu_rms_norm(x, gamma, epsilon)[0]; differentiable by torch_npu itself.

    Raises:
        NotImplementedError: a case outside its contract (it needs a weight of x.dtype, 2 to 8 dimensions, offset 0, one rounding).
    """
    limits = (
        (x.device.type != "npu", f"it needs an NPU tensor (got {x.device.type})"),
        (weight is None, "it needs a weight (got None)"),
        (weight is not None and weight.dtype != x.dtype, "its weight must have the dtype of x"),
        (offset != 0.0, f"it has no offset (got {offset})"),
        (casting == "none", "it computes in fp32 (got casting='none')"),
        (not 2 <= x.dim() <= 8, f"x must have 2 to 8 dimensions (got {x.dim()})"),
    )
    for outside, reason in limits:
        if outside:
            raise NotImplementedError(f"implementation='vendor' (torch_npu.npu_rms_norm) cannot run: {reason}")
    import torch_npu

    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]
