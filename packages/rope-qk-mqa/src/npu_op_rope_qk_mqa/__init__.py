"""Fused rotary embedding of multi-query latent attention for Ascend NPUs."""

from .__about__ import __version__
from .module import RopeQKMQA
from .op import fused_rope_qk_mqa
from .reference import rope_qk_mqa_reference

__all__ = ["RopeQKMQA", "__version__", "fused_rope_qk_mqa", "rope_qk_mqa_reference"]
