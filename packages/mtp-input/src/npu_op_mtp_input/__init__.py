"""Fused input of multi-token prediction for Ascend NPUs."""

from .__about__ import __version__
from .module import MTPInput
from .op import fused_mtp_input
from .reference import mtp_input_reference
from .rotation import fold_rotation

__all__ = ["MTPInput", "__version__", "fold_rotation", "fused_mtp_input", "mtp_input_reference"]
