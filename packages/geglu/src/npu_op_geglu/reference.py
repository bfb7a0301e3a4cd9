"""GEGLU in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch


def geglu_reference(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "tanh") -> torch.Tensor:
    """gelu(gate) * up as transformers' Gemma MLP computes it; `approximate` as in torch.nn.functional.gelu."""
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


def geglu_packed_reference(x: torch.Tensor, *, approximate: str = "tanh") -> torch.Tensor:
    """`geglu_reference` of the first and the second half of the last dimension."""
    gate, up = x.chunk(2, dim=-1)
    return geglu_reference(gate, up, approximate=approximate)
