"""Drop-in modules: torch.nn.RMSNorm with the fused kernel, and Gemma's variant."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_choice, require_number

from .op import CASTINGS, rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm over the last dimension, with a choice of casting.

    Args:
        hidden_size: width of the last dimension, an int or a one-element shape.
        eps: added to the mean square; None is torch's default, the smallest step of x.dtype.
        elementwise_affine: False for no weight.
        casting, offset: see `rms_norm`.

    Raises:
        TypeError, ValueError: an option that `rms_norm` does not take, or a shape of several dimensions; the message names it.
    """

    def __init__(
        self,
        hidden_size: int | tuple[int, ...],
        eps: float | None = 1e-6,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        casting: str = "llama",
        offset: float = 0.0,
    ) -> None:
        if eps is not None:
            require_number("eps", eps)
        require_number("offset", offset)
        require_choice("casting", casting, CASTINGS)
        super().__init__(hidden_size, eps=eps, elementwise_affine=elementwise_affine, device=device, dtype=dtype)
        if len(self.normalized_shape) != 1:
            raise ValueError(f"hidden_size must be an int or a one-element shape (got {tuple(self.normalized_shape)})")
        self.casting = casting
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return rms_norm(x, self.weight, eps, offset=self.offset, casting=self.casting)


class GemmaRMSNorm(RMSNorm):
    """transformers' GemmaRMSNorm: multiplies by 1 + weight in fp32, weight initialised to zero."""

    def __init__(
        self,
        hidden_size: int | tuple[int, ...],
        eps: float | None = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, eps=eps, device=device, dtype=dtype, casting="gemma", offset=1.0)

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)
