"""Runs the cases of an operator, or a user's file, in the emulator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..compiler.cases import REFUSALS, plan_cases
from ..compiler.user_file import run_file
from ..operators import load
from ..passes import prepared, reference_results, unwritten
from .costs import Ceiling
from .findings import Finding, OutOfBounds, UndefinedBehavior
from .kernel import KernelTiming
from .run import Emulation, emulate

# What ends a call because of a kernel: it does not compile, is not covered, or does what cannot be computed.
FAULTS = (*REFUSALS, NotImplementedError, OutOfBounds, UndefinedBehavior)


@dataclass(frozen=True)
class CaseRun:
    """One call of an operator in the emulator, forward and backward.

    Attributes:
        source: operator, or file, that was called.
        case: name of the spec case, "" for a file.
        soc: what it was compiled for.
        executed: values were computed and judged by the oracle; otherwise only time was modelled.
        kernels: modelled time of each launch.
        seconds: of the whole call, PyTorch's kernels and launch costs included.
        findings: faults of the kernels.
        wrong: the oracle's verdicts that did not pass, and errors that ended the call.
    """

    source: str
    case: str
    soc: str
    executed: bool
    kernels: tuple[KernelTiming, ...]
    seconds: float
    findings: tuple[Finding, ...]
    wrong: tuple[str, ...]


def run_cases(operator: str, socs: Sequence[str], cases: Sequence[str] | None, ceiling: Ceiling, jobs: int | None = None) -> list[CaseRun]:
    """Run every named case (all by default) for every SoC, in `jobs` processes (one per core by default).

    Raises:
        ValueError: an operator that is not installed, a SoC or a case that is unknown.
    """
    work = [(operator, case, soc, ceiling) for _, case, found in plan_cases([operator], socs, cases) for soc in found]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # spawn: a forked child would inherit torch's thread pools in an unknown state.
    pool = ProcessPoolExecutor(min(jobs or os.cpu_count() or 1, len(work)), mp_context=get_context("spawn"))
    with pool, Progress(*columns, transient=True) as progress:
        return list(progress.track(pool.map(run_case, *zip(*work, strict=True)), total=len(work), description="emulating cases"))


def run_case(operator: str, case_name: str, soc: str, ceiling: Ceiling) -> CaseRun:
    """Run one case: a case tagged "values" is executed and judged, any other is only timed."""
    spec = load(operator)
    case = next(case for case in spec.cases if case.name == case_name)
    executed = "values" in case.tags
    reference = reference_results(spec, case) if executed else None
    call = prepared(spec, case, reference.upstream) if reference else unwritten(spec, case)
    with emulate(soc, values=executed, faults="collect", ceiling=ceiling) as emulation:
        try:
            results = call.run(spec.function)
        except FAULTS as error:
            return _result(operator, case_name, executed, emulation, [str(error).strip()])
    wrong = [str(verdict) for verdict in reference.judge(results) if not verdict.passed] if reference else []
    return _result(operator, case_name, executed, emulation, wrong)


def time_case(operator: str, case_name: str, soc: str, ceiling: Ceiling) -> Emulation:
    """Model the time of one case, forward and backward, without values; an error of `FAULTS` comes through."""
    spec = load(operator)
    call = unwritten(spec, next(case for case in spec.cases if case.name == case_name))
    with emulate(soc, values=False, ceiling=ceiling) as emulation:
        call.run(spec.function)
    return emulation


def emulate_file(path: Path, soc: str, ceiling: Ceiling) -> tuple[CaseRun, Emulation]:
    """Run what a user's file launches (see `run_file`), with values and checks.

    Raises:
        ValueError: the file fails of itself, or launches no kernel.
    """
    wrong: list[str] = []
    with emulate(soc, faults="collect", ceiling=ceiling) as emulation:
        try:
            run_file(path, FAULTS)
        except FAULTS as error:
            wrong = [str(error).strip()]
    if not emulation.launches and not wrong:
        raise ValueError(f"{path} launched no kernel on CPU tensors")
    return _result(str(path), "", True, emulation, wrong), emulation


def _result(source: str, case: str, executed: bool, emulation: Emulation, wrong: list[str]) -> CaseRun:
    time = emulation.time()
    return CaseRun(source, case, emulation.soc.name, executed, tuple(time.kernels), time.seconds, tuple(emulation.findings), tuple(wrong))
