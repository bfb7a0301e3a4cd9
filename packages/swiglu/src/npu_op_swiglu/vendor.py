"""The vendor's fused op as a named implementation: torch_npu.npu_swiglu, which takes packed input only."""

from __future__ import annotations

import torch


def swiglu_vendor() -> torch.Tensor:
    """Always raises: no single vendor op takes gate and up as two tensors.

    Raises:
        NotImplementedError: with that reason.
    """
    raise NotImplementedError("implementation='vendor' cannot run: torch_npu.npu_swiglu takes gate | up in one tensor; use swiglu_packed")


def swiglu_packed_vendor(x: torch.Tensor, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> torch.Tensor:
    """npu_swiglu(x) with the gate in the left half; differentiable by torch_npu itself.

    Raises:
        NotImplementedError: not an NPU tensor, or a multiplier.
    """
    if x.device.type != "npu":
        raise NotImplementedError(
            f"implementation='vendor' (torch_npu.npu_swiglu) cannot run: it needs an NPU tensor (got {x.device.type})"
        )
    if (gate_multiplier, down_multiplier) != (1.0, 1.0):
        raise NotImplementedError("implementation='vendor' (torch_npu.npu_swiglu) cannot run: it has no multipliers")
    import torch_npu

    return torch_npu.npu_swiglu(x, dim=-1)
