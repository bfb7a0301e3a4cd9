"""Fused GEGLU for Ascend NPUs."""

from .__about__ import __version__
from .module import GEGLUMLP
from .op import geglu, geglu_packed
from .reference import geglu_packed_reference, geglu_reference

__all__ = ["GEGLUMLP", "__version__", "geglu", "geglu_packed", "geglu_packed_reference", "geglu_reference"]
