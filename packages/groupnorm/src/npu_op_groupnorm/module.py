"""Drop-in module: torch.nn.GroupNorm with the fused kernel."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_number, require_width

from .op import group_norm


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm; takes its arguments and loads its state.

    Raises:
        TypeError, ValueError: an option of the wrong type or range, or `num_channels` not divisible by `num_groups`; the message names it.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_width("num_groups", num_groups)
        require_width("num_channels", num_channels)
        require_number("eps", eps)
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
