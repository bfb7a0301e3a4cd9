"""Fused LayerNorm for Ascend NPUs."""

from .__about__ import __version__
from .module import LayerNorm
from .op import layer_norm
from .reference import layer_norm_reference

__all__ = ["LayerNorm", "__version__", "layer_norm", "layer_norm_reference"]
