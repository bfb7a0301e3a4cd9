"""MyOp in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch


def my_op_reference(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x), evaluated by PyTorch in fp32 for half precision."""
    return torch.nn.functional.silu(x)
