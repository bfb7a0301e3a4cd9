"""Every check of the battery accepts a right operator and catches a broken one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_op_lab.battery import CHECKS, OperatorBattery, pytest_class
from npu_op_lab.execution import EAGER, EMULATED_SOCS, Mode, available_modes, has_offline_compiler, offline_mode
from npu_op_runtime.soc import GATE_SOCS
from npu_op_runtime.spec import OperatorSpec

from .toy import KERNELS, toy
from .toy_kernel import toy_kernel

BY_NAME = {check.name: check for check in CHECKS}
OFFLINE = offline_mode("Ascend910B4")

# Check, fault, what the check says of it.
FAULTS = (
    ("oracle", "off by a row", "output: max error"),
    ("oracle", "sums in fp16", "output: max error"),
    ("oracle", "last program wins", "grad of weight: max error"),
    ("oracle_can_fail", "vacuous case", "the oracle accepts"),
    ("any_shape", "width above 64 lost", "output: max error"),
    ("dtypes", "one dtype", "no executed case in bfloat16, float16"),
    ("empty", "refuses no rows", "grid must not be empty"),
    ("empty", "gradient of no rows not zeroed", "grad of weight"),
    ("strided", "ignores strides", "output: "),
    ("strided_vectors", "ignores the stride of a vector", "output: NaN"),
    ("expanded_gradient", "reads the incoming gradient once", "grad of x: max error"),
    ("gradient_refused", "drops a gradient", "a gradient of x is dropped silently"),
    ("frozen", "needs every gradient", "dweight is None"),
    ("inputs_unchanged", "overwrites an input", r"changed inputs or incoming gradients of shapes \[\(24, 64\)\]"),
    ("inputs_unchanged", "overwrites the incoming gradient", r"changed inputs or incoming gradients of shapes \[\(24, 64\)\]"),
    ("guard_bands", "tail not written", "output: NaN at 64 elements"),
    ("guard_bands", "writes outside", r"written outside: after empty_like \(24, 64\)"),
    ("guard_bands", "reads outside", "output: NaN at 1536 elements"),
    ("repeatable", "random order", "6 equal calls differ in output"),
    ("frozen_costs_nothing", "computes frozen gradients", "freezing x saves 0 bytes, its gradient has 6144"),
    ("torch_compile", "graph break", "graph_break"),
    ("graph_for_every_row_count", "loops over rows", r"graphs compiled after each of the row counts \(2, 3, 5, 8, 13\)"),
    ("graph_for_every_float", "float in the schema", "graphs compiled after each of eps"),
    ("graph_replay", "latches its first result", "output: max error"),
    ("opcheck", "fake of another dtype", "test_faketensor failed"),
    ("opcheck", "overwrites an input", "test_schema failed"),
    ("opcheck", "bypasses its ops", "no registered op was called"),
    ("no_host_sync", "reads on the host", "reads values on the host: tolist"),
    ("no_host_sync", "depends on values", "reads values on the host: "),
)

# The same for checks of launches: kernels are compiled.
KERNEL_FAULTS = (
    ("no_copy", "copies", r"copied: aten.clone.default of \(50, 100\)"),
    ("no_host_sync", "syncs", "reads values on the host: "),
    ("one_compile_for_every_row_count", "rows in the kernel", "10 calls compiled rows_constexpr_kernel 10 times"),
    ("one_compile_for_every_float", "float in the kernel", "4 calls compiled scale_constexpr_kernel 4 times"),
    ("many_rows", "a program per row", "grid should be less than 65536"),
    ("many_rows", "launches no rows", "without rows it launches scale_rows_kernel"),
    ("compiles", "tile beyond the UB", "UB overflow"),
)


def modes_of(check: str) -> Mode:
    """A mode that the check runs in and that suits the toy."""
    modes = BY_NAME[check].modes
    return OFFLINE if any(name.startswith("offline") for name in modes) else EAGER if "eager" in modes else KERNELS


def run(check: str, spec: OperatorSpec, mode: Mode) -> None:
    for case in BY_NAME[check].cases(spec):
        BY_NAME[check].run(spec, case, mode)


@pytest.mark.parametrize("check", [check for check in BY_NAME if modes_of(check) != OFFLINE])
def test_right_operator_passes(check):
    run(check, toy("none"), modes_of(check))


@pytest.mark.parametrize("check", [check for check in BY_NAME if modes_of(check) != OFFLINE])
def test_right_operator_without_a_backward_passes(check):
    run(check, toy("inference"), modes_of(check))


@pytest.mark.parametrize(("check", "fault", "message"), FAULTS, ids=[f"{check}-{fault}" for check, fault, _ in FAULTS])
def test_fault_is_caught(check, fault, message):
    # An offline mode only changes what Triton does: the toy's ops would ask for kernels.
    mode = Mode("offline-Ascend910B4", "cpu", kernels=True, executes=False) if check == "no_host_sync" else modes_of(check)
    with pytest.raises(Exception, match=message):
        run(check, toy(fault), mode)


@pytest.mark.parametrize("check", [check for check in BY_NAME if modes_of(check) == OFFLINE])
def test_right_kernel_passes(check):
    run(check, toy_kernel("none"), OFFLINE)


@pytest.mark.parametrize(("check", "fault", "message"), KERNEL_FAULTS, ids=[f"{check}-{fault}" for check, fault, _ in KERNEL_FAULTS])
def test_fault_of_a_kernel_is_caught(check, fault, message):
    with pytest.raises(Exception, match=message):
        run(check, toy_kernel(fault), OFFLINE)


def test_every_check_has_caught_a_fault():
    assert {check for check, _, _ in (*FAULTS, *KERNEL_FAULTS)} == set(BY_NAME)


def test_class_has_a_test_for_every_check_that_can_run(monkeypatch):
    monkeypatch.setattr(pytest_class, "available_modes", lambda: (EAGER, KERNELS))

    class Battery(OperatorBattery):
        spec = toy("none")

        def test_strided(self):
            """Its own."""

    found = {name.removeprefix("test_") for name in vars(Battery) if name.startswith("test_")}
    assert found == {name for name, check in BY_NAME.items() if check.modes & {"eager", "interpreter"} and check.cases(toy("none"))}
    assert Battery.test_strided.__doc__ == "Its own."
    (mark,) = Battery.test_oracle.pytestmark
    assert mark.kwargs["ids"] == [f"{case.name}-{mode}" for mode in ("eager", "interpreter") for case in toy("none").cases]


def test_modes_of_a_process_without_accelerator():
    """Eager and, where triton-ascend is installed, the SoCs of the compile gate and of the emulator."""
    names = [mode.name for mode in available_modes() if mode.device == "cpu"]
    socs = [f"offline-{soc}" for soc in GATE_SOCS] + [f"emulator-{soc}" for soc in EMULATED_SOCS]
    assert names == (["eager", *socs] if has_offline_compiler() else ["eager"])


def test_battery_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("interpreted.py"))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout[-3000:]
