"""Fused Kullback-Leibler divergence loss for Ascend NPUs."""

from .__about__ import __version__
from .module import KLDivLoss
from .op import kl_div
from .reference import kl_div_reference

__all__ = ["KLDivLoss", "__version__", "kl_div", "kl_div_reference"]
