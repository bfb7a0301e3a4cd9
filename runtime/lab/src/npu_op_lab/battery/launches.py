"""Checks of the kernels that an operator launches, compiled for an Ascend SoC and recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from npu_op_runtime.spec import Case, OperatorSpec

from ..execution import Mode
from ..passes import Call, unwritten, with_dims
from .check import check
from .graphs import float_arguments
from .selection import every, first, representatives

if TYPE_CHECKING:
    from ..compiler import Launch

# Triton compiles anew for an argument that is 1 or a multiple of 16, so both are among them; more and fewer rows than cores.
ROW_COUNTS = (1, 2, 3, 8, 16, 17, 40, 100, 257, 4096)
MANY_ROWS = 70_000  # above the 65,535 programs of a grid


@check(representatives, "offline-Ascend910B4")
def check_one_compile_for_every_row_count(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Ten numbers of rows launch the same compiled kernels."""
    # One row of a strided tensor is a dense tensor.
    counts = [rows for rows in ROW_COUNTS if rows > 1 or case.layout == "contiguous"]
    _require_same_kernels(spec, mode, [unwritten(spec, with_dims(case, **{spec.rows: rows})) for rows in counts])


@check(first, "offline-Ascend910B4")
def check_one_compile_for_every_float(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """The value of a float argument is no part of a compiled kernel (0, which may leave a step out, and its own are)."""
    for name, values in float_arguments(spec, case):
        cases = [replace(case, options={**case.options, name: value}) for value in values[1:]]
        _require_same_kernels(spec, mode, [unwritten(spec, changed) for changed in cases])


@check(representatives, "offline-Ascend910B4", "offline-Ascend910_9391")
def check_many_rows(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """More than 65,535 rows stay within the grid of the NPU (triton-ascend refuses a bigger one); none launch nothing."""
    assert _launches(spec, mode, unwritten(spec, with_dims(case, **{spec.rows: MANY_ROWS}))), "no kernel was launched"
    launched = _launches(spec, mode, unwritten(spec, with_dims(case, **{spec.rows: 0})))
    assert not launched, f"without rows it launches {', '.join(launch.kernel.name for launch in launched)}"


@check(every, "offline")
def check_compiles(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """The compile gate: double buffering kept, no scalar loop, UB within plan."""
    from ..compiler import check as gate  # needs triton-ascend
    from ..compiler import report

    kernels = {launch.kernel.key: launch.kernel for launch in _launches(spec, mode, unwritten(spec, case))}
    assert kernels, "no kernel was launched"
    violations = [violation for kernel in kernels.values() for violation in gate(report(kernel))]
    assert not violations, "\n".join(violations)


def _launches(spec: OperatorSpec, mode: Mode, call: Call) -> list[Launch]:
    with mode.enter() as launches:
        call.run(spec.function)
    return list(launches)


def _require_same_kernels(spec: OperatorSpec, mode: Mode, calls: list[Call]) -> None:
    compiled: dict[str, set[str]] = defaultdict(set)
    in_one_call: Counter[str] = Counter()
    for call in calls:
        kernels = {launch.kernel.key: launch.kernel.name for launch in _launches(spec, mode, call)}
        for key, name in kernels.items():
            compiled[name].add(key)
        in_one_call |= Counter(kernels.values())
    again = {name: len(keys) for name, keys in compiled.items() if len(keys) > in_one_call[name]}
    assert compiled, "no kernel was launched"
    assert not again, "; ".join(f"{len(calls)} calls compiled {name} {times} times" for name, times in again.items())
