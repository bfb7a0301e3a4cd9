"""Fused rotary position embeddings of Llama 4 for Ascend NPUs."""

from .__about__ import __version__
from .module import Llama4Rotary
from .op import apply_llama4_rotary
from .reference import apply_llama4_rotary_reference

__all__ = ["Llama4Rotary", "__version__", "apply_llama4_rotary", "apply_llama4_rotary_reference"]
