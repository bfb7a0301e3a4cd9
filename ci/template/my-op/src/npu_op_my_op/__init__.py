"""Fused MyOp for Ascend NPUs."""

from .__about__ import __version__
from .module import MyOp
from .op import my_op
from .reference import my_op_reference

__all__ = ["MyOp", "__version__", "my_op", "my_op_reference"]
