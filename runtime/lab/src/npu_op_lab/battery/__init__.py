"""The tests that every operator passes, derived from its spec. An operator's test file needs no more than

class TestBattery(OperatorBattery):
    spec = SPEC
"""

from __future__ import annotations

from . import graphs, launches, layouts, memory, values  # noqa: F401  (each registers its checks)
from .check import CHECKS, Check
from .pytest_class import OperatorBattery

__all__ = ["CHECKS", "Check", "OperatorBattery"]
