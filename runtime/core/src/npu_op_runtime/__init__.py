"""The runtime shared by the npu-op operators: SoC table, tile planner, launch, dispatch, registration.

Importing it does no torch work and needs neither Triton nor torch_npu.
"""

from .__about__ import __version__
from .dispatch import Choice, explain
from .soc import SOCS, Soc, get_soc

__all__ = ["SOCS", "Choice", "Soc", "__version__", "explain", "get_soc"]
