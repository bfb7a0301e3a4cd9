"""Fused GRPO losses for Ascend NPUs."""

from .__about__ import __version__
from .fused import fused_linear_grpo_loss
from .module import FusedLinearGRPOLoss
from .op import grpo_loss
from .reference import GRPOLoss, fused_linear_grpo_loss_reference, grpo_loss_reference

__all__ = [
    "FusedLinearGRPOLoss",
    "GRPOLoss",
    "__version__",
    "fused_linear_grpo_loss",
    "fused_linear_grpo_loss_reference",
    "grpo_loss",
    "grpo_loss_reference",
]
