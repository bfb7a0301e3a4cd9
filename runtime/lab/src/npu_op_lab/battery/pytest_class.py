"""The battery as a pytest class."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest

from npu_op_runtime.spec import Case, OperatorSpec

from ..execution import Mode, available_modes
from .check import CHECKS, Check


class OperatorBattery:
    """Subclass it as `Test...` with `spec`: each check of the battery becomes a test of the subclass.

    A test is named after its check and parametrised by case and mode: `test_oracle[llama-float16-emulator-Ascend910B4]`. A check
    that no mode of this process can run is left out, not skipped. A subclass may define a test of the same name of its own.
    """

    spec: ClassVar[OperatorSpec]

    def __init_subclass__(cls) -> None:
        for check in CHECKS:
            parameters = check.parameters(cls.spec, available_modes())
            name = f"test_{check.name}"
            if parameters and name not in vars(cls):
                setattr(cls, name, _test(check, parameters))


def _test(check: Check, parameters: list[tuple[Case, Mode]]) -> Callable[..., None]:
    def test(self: OperatorBattery, case: Case, mode: Mode) -> None:
        check.run(self.spec, case, mode)

    test.__doc__ = check.run.__doc__
    ids = [f"{case.name}-{mode.name}" for case, mode in parameters]
    marked: Callable[..., None] = pytest.mark.parametrize(("case", "mode"), parameters, ids=ids)(test)
    return marked
