"""Fused RMSNorm for Ascend NPUs."""

from .__about__ import __version__
from .module import GemmaRMSNorm, RMSNorm
from .op import rms_norm
from .reference import rms_norm_reference

__all__ = ["GemmaRMSNorm", "RMSNorm", "__version__", "rms_norm", "rms_norm_reference"]
