"""Which dtypes the operators take and in which precision they compute."""

from __future__ import annotations

from collections.abc import Collection

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Where a formula is evaluated: fp32, or fp64 when the input is fp64 (the oracle's gold)."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def itemsize_of(dtype: torch.dtype | None) -> int:
    """Bytes of an element; 0 for a tensor that is not given (`launch.dtypes_of` says None)."""
    return 0 if dtype is None else dtype.itemsize


def short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def require_dtype(argument: str, tensor: torch.Tensor, allowed: Collection[torch.dtype] = FLOATS) -> None:
    """Raises TypeError naming the argument, its dtype and the allowed ones."""
    if tensor.dtype not in allowed:
        raise TypeError(f"{argument} must have dtype {' or '.join(short_name(d) for d in allowed)} (got {short_name(tensor.dtype)})")
