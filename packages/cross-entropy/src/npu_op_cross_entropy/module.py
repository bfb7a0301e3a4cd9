"""Drop-in module: torch.nn.CrossEntropyLoss with the fused kernel and its further options."""

from __future__ import annotations

import torch

from .op import cross_entropy, require_options
from .reference import CrossEntropyOutput


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss; the last dimension of the logits is that of the classes. Options as in `cross_entropy`."""

    def __init__(
        self,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        lse_square_scale: float = 0.0,
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
        inplace: bool = False,
    ) -> None:
        require_options(ignore_index, reduction, label_smoothing, lse_square_scale, softcap)
        super().__init__(weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)
        self.lse_square_scale = lse_square_scale
        self.softcap = softcap
        self.return_z_loss = return_z_loss
        self.return_token_accuracy = return_token_accuracy
        self.return_predicted_tokens = return_predicted_tokens
        self.inplace = inplace

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor | CrossEntropyOutput:  # type: ignore[override]
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            lse_square_scale=self.lse_square_scale,
            softcap=self.softcap,
            return_z_loss=self.return_z_loss,
            return_token_accuracy=self.return_token_accuracy,
            return_predicted_tokens=self.return_predicted_tokens,
            inplace=self.inplace,
        )
