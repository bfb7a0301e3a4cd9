"""SwiGLU in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> torch.Tensor:
    """silu(gate_multiplier * gate) * up * down_multiplier as transformers' LlamaMLP (multipliers 1) and FalconH1MLP compute it.

    The scaled gate stays in fp32 until silu is taken; every later step is rounded to the dtype of gate.
    """
    if gate_multiplier == 1.0:
        activated = torch.nn.functional.silu(gate)
    else:
        activated = torch.nn.functional.silu(gate.to(compute_dtype(gate.dtype)) * gate_multiplier).to(gate.dtype)
    y = activated * up
    return y if down_multiplier == 1.0 else y * down_multiplier


def swiglu_packed_reference(x: torch.Tensor, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> torch.Tensor:
    """`swiglu_reference` of the first and the second half of the last dimension."""
    gate, up = x.chunk(2, dim=-1)
    return swiglu_reference(gate, up, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
