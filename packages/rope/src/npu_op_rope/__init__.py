"""Fused rotary position embeddings for Ascend NPUs."""

from .__about__ import __version__
from .module import Rotary
from .op import apply_rotary
from .reference import apply_rotary_reference

__all__ = ["Rotary", "__version__", "apply_rotary", "apply_rotary_reference"]
