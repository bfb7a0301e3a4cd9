"""Fused GroupNorm for Ascend NPUs."""

from .__about__ import __version__
from .module import GroupNorm
from .op import group_norm
from .reference import group_norm_reference

__all__ = ["GroupNorm", "__version__", "group_norm", "group_norm_reference"]
