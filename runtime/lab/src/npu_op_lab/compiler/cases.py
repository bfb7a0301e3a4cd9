"""Compiles the cases of operators, or a user's file, and gathers the reports of every kernel launched."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from triton.errors import TritonError

from npu_op_runtime.soc import get_soc
from npu_op_runtime.spec import Case, OperatorSpec

from ..operators import load
from ..passes import unwritten
from .analysis import KernelReport, report
from .errors import CompileError
from .gate import check
from .offline import offline

# A kernel that is refused: by the vendor's compiler, by Triton's front end.
REFUSALS = (CompileError, TritonError)


@dataclass(frozen=True)
class CaseReport:
    """One call compiled for one SoC.

    Attributes:
        source: operator, or file, that was called.
        case: name of the spec case, "" for a file.
        soc: compiler target.
        kernels: the kernels launched, each once, in the order of their first launch.
        violations: of all kernels (see `check`); a kernel that does not compile is one too.
    """

    source: str
    case: str
    soc: str
    kernels: tuple[KernelReport, ...]
    violations: tuple[str, ...]


def compile_cases(
    operators: Sequence[str], socs: Sequence[str] | None = None, cases: Sequence[str] | None = None, jobs: int | None = None
) -> list[CaseReport]:
    """Compile every named case of every named operator for every SoC, forward and backward, in `jobs` processes.

    `socs` and `cases` default to those of each operator's spec, `jobs` to the number of cores. Inputs are unwritten
    memory, so that big shapes cost neither time nor memory. Kernels are cached by content, see `offline`.

    Raises:
        ValueError: an operator that is not installed, a SoC or a case that is unknown, jobs < 1.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1 (got {jobs})")
    work = plan_cases(operators, socs, cases)
    if not work:
        return []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # spawn: a forked child would inherit torch's thread pools in an unknown state.
    pool = ProcessPoolExecutor(min(jobs or os.cpu_count() or 1, len(work)), mp_context=get_context("spawn"))
    with pool, Progress(*columns, transient=True) as progress:
        done = progress.track(pool.map(_compile_case, *zip(*work, strict=True)), total=len(work), description="compiling cases")
        return [report for reports in done for report in reports]


def plan_cases(
    operators: Sequence[str], socs: Sequence[str] | None = None, cases: Sequence[str] | None = None
) -> list[tuple[str, str, tuple[str, ...]]]:
    """The (operator, case, SoCs) that `compile_cases` compiles.

    Raises:
        ValueError: an operator that is not installed, a SoC or a case that is unknown; the message lists the known ones.
    """
    return [
        (spec.name, case.name, tuple(get_soc(soc).name for soc in socs or spec.socs))
        for spec in map(load, operators)
        for case in _select(spec, cases)
    ]


def _select(spec: OperatorSpec, names: Sequence[str] | None) -> list[Case]:
    known = {case.name: case for case in spec.cases}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"case of {spec.name} must be one of {', '.join(known)} (got {', '.join(unknown)})")
    return [known[name] for name in names] if names else list(known.values())


def compile_call(call: Callable[[], object], soc: str, source: str, case: str = "") -> CaseReport:
    """The reports of the kernels that `call` launches, compiled for `soc`; a refusal of the compiler ends the call."""
    refused = []
    with offline(soc) as launches:
        try:
            call()
        except REFUSALS as error:
            refused.append(str(error).strip())
    kernels = [report(kernel) for kernel in {launch.kernel.key: launch.kernel for launch in launches}.values()]
    violations = [violation for kernel in kernels for violation in check(kernel)]
    return CaseReport(source, case, get_soc(soc).name, tuple(kernels), tuple(violations + refused))


def _compile_case(operator: str, case_name: str, socs: Sequence[str]) -> list[CaseReport]:
    spec = load(operator)
    (case,) = _select(spec, [case_name])
    call = unwritten(spec, case)
    found = [compile_call(lambda: call.run(spec.function), soc, operator, case_name) for soc in socs]
    # Only an empty input launches nothing; anything else was computed by PyTorch behind the gate's back.
    if not all(tensor.numel() for tensor in call.tensors):
        return found
    return [
        report
        if report.kernels or report.violations
        else replace(report, violations=(f"{operator}, case {case_name}, for {report.soc}: no kernel was launched",))
        for report in found
    ]
