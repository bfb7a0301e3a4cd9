"""Fused multimodal rotary embeddings of Qwen2-VL for Ascend NPUs."""

from .__about__ import __version__
from .module import MultimodalRotary
from .op import apply_multimodal_rotary
from .reference import apply_multimodal_rotary_reference

__all__ = ["MultimodalRotary", "__version__", "apply_multimodal_rotary", "apply_multimodal_rotary_reference"]
