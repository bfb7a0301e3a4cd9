"""Fused total variation distance loss for Ascend NPUs."""

from .__about__ import __version__
from .module import TVDLoss
from .op import tvd
from .reference import tvd_reference

__all__ = ["TVDLoss", "__version__", "tvd", "tvd_reference"]
