"""Fused split and RMSNorm of latent attention projections for Ascend NPUs."""

from .__about__ import __version__
from .module import SplitQKNorm
from .op import fused_split_qk_norm
from .reference import split_qk_norm_reference

__all__ = ["SplitQKNorm", "__version__", "fused_split_qk_norm", "split_qk_norm_reference"]
