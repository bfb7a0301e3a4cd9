"""Fused cross-entropy for Ascend NPUs."""

from .__about__ import __version__
from .module import CrossEntropyLoss
from .op import cross_entropy
from .reference import CrossEntropyOutput, cross_entropy_reference

__all__ = ["CrossEntropyLoss", "CrossEntropyOutput", "__version__", "cross_entropy", "cross_entropy_reference"]
