"""Fused SwiGLU for Ascend NPUs."""

from .__about__ import __version__
from .module import SwiGLUMLP
from .op import swiglu, swiglu_packed
from .reference import swiglu_packed_reference, swiglu_reference

__all__ = ["SwiGLUMLP", "__version__", "swiglu", "swiglu_packed", "swiglu_packed_reference", "swiglu_reference"]
