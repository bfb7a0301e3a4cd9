"""Run by test_battery in a process of its own, in which Triton interprets kernels: the battery on a real kernel."""

from __future__ import annotations

import pytest

from npu_op_lab.battery import CHECKS, OperatorBattery
from npu_op_lab.execution import available_modes

from .toy_kernel import toy_kernel

GUARD_BANDS = next(check for check in CHECKS if check.name == "guard_bands")


class TestBattery(OperatorBattery):
    spec = toy_kernel("none")


def test_the_interpreter_is_the_only_mode():
    assert [mode.name for mode in available_modes()] == ["interpreter"]


def test_a_store_outside_is_caught():
    spec, (mode,) = toy_kernel("writes outside"), available_modes()
    with pytest.raises(AssertionError, match="written outside: after empty"):
        GUARD_BANDS.run(spec, spec.cases[0], mode)
