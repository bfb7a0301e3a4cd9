"""Fused softmax for Ascend NPUs."""

from .__about__ import __version__
from .module import Softmax
from .op import softmax
from .reference import softmax_reference

__all__ = ["Softmax", "__version__", "softmax", "softmax_reference"]
