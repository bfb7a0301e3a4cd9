"""Drop-in module: torch.nn.LayerNorm with the fused kernel."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_number

from .op import layer_norm


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm over the last dimension; takes its arguments and loads its state.

    Raises:
        TypeError: `eps` is no number.
        ValueError: `normalized_shape` has more than one dimension.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_number("eps", eps)
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        if len(self.normalized_shape) != 1:
            raise ValueError(f"normalized_shape must be an int or a one-element shape (got {tuple(self.normalized_shape)})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)
