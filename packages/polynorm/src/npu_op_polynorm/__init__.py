"""Fused PolyNorm for Ascend NPUs."""

from .__about__ import __version__
from .module import PolyNorm
from .op import poly_norm
from .reference import poly_norm_reference

__all__ = ["PolyNorm", "__version__", "poly_norm", "poly_norm_reference"]
