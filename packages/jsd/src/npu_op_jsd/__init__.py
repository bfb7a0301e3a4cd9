"""Fused generalised Jensen-Shannon divergence loss for Ascend NPUs."""

from .__about__ import __version__
from .module import JSDLoss
from .op import jsd
from .reference import jsd_reference

__all__ = ["JSDLoss", "__version__", "jsd", "jsd_reference"]
