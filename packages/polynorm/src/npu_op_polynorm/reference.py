"""PolyNorm in plain PyTorch, on any device: the eager implementation and what the oracle evaluates in fp64."""

from __future__ import annotations

import torch

from npu_op_runtime.dtypes import compute_dtype


def poly_norm_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """w0 * n(x^3) + w1 * n(x^2) + w2 * n(x) + b with n(t) = t / sqrt(mean(t^2) + eps) over the last dimension.

    Evaluated in fp32 and rounded once to x.dtype, as the PolyNorm of "Polynomial Composition Activations" is in training frameworks.
    """
    wide = compute_dtype(x.dtype)
    x32, w = x.to(wide), weight.to(wide)

    def normalised(t: torch.Tensor) -> torch.Tensor:
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + eps)

    y = w[0] * normalised(x32**3) + w[1] * normalised(x32**2) + w[2] * normalised(x32)
    return (y if bias is None else y + bias.to(wide)).to(x.dtype)
