"""Cosines and sines of rotary embeddings by position, for Ascend NPUs."""

from .__about__ import __version__
from .module import RotaryCache
from .op import gather_cos_sin
from .reference import gather_cos_sin_reference

__all__ = ["RotaryCache", "__version__", "gather_cos_sin", "gather_cos_sin_reference"]
