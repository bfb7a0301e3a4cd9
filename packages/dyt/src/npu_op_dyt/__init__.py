"""Fused Dynamic Tanh (DyT) for Ascend NPUs."""

from .__about__ import __version__
from .module import DyT
from .op import dyt
from .reference import dyt_reference

__all__ = ["DyT", "__version__", "dyt", "dyt_reference"]
