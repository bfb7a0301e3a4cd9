"""How wrong a kernel and eager PyTorch are, tensor by tensor, in the terms in which others publish their tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from rich import box
from rich.table import Column, Table

from npu_op_runtime.spec import Case, OperatorSpec

from .execution import Mode
from .oracle import Errors, Verdict, as_fp64, errors_of
from .passes import prepared, reference_results

RTOL = 1e-2


@dataclass(frozen=True)
class TensorTolerance:
    """Errors of one output or gradient against fp64.

    Attributes:
        case: name of the case.
        tensor: "output", "grad of x", ...
        kernel, eager: maximum and RMS error of the operator, and of the reference run by PyTorch.
        atol, eager_atol: the smallest atol with which each is within |error| <= atol + RTOL * |gold|.
        verdict: the oracle's.
    """

    case: str
    tensor: str
    kernel: Errors
    eager: Errors
    atol: float
    eager_atol: float
    verdict: Verdict


def summary(spec: OperatorSpec, case: Case, mode: Mode, seed: int = 0) -> list[TensorTolerance]:
    """The errors of every output and gradient of a case, over the elements that are finite in fp64."""
    reference = reference_results(spec, case, device=mode.device, seed=seed)
    call = prepared(spec, case, reference.upstream, device=mode.device, seed=seed)
    with mode.enter():
        actual = call.run(spec.function)
    found = []
    for verdict in reference.judge(actual):
        gold = reference.gold[verdict.name]
        kernel, atol = _errors(actual.get(verdict.name), gold)
        eager, eager_atol = _errors(reference.base[verdict.name], gold)
        found.append(TensorTolerance(case.name, verdict.name, kernel, eager, atol, eager_atol, verdict))
    return found


def _errors(result: torch.Tensor | None, gold: torch.Tensor | None) -> tuple[Errors, float]:
    """Errors, and the smallest atol at RTOL; NaN where there is nothing to compare, which the verdict explains."""
    if result is None or gold is None or result.shape != gold.shape:
        return Errors(math.nan, math.nan), math.nan
    exact = as_fp64(gold)
    difference, finite = as_fp64(result) - exact, exact.isfinite()
    beyond = (difference.abs() - RTOL * exact.abs())[finite].clamp(min=0)
    return errors_of(difference, finite), float(beyond.max()) if beyond.numel() else 0.0


def table(title: str, rows: Iterable[TensorTolerance]) -> Table:
    """A row per tensor, red where the oracle rejects it; fits 80 columns."""
    numbers = ("max", "eager", "RMS", "eager", "atol", "eager")
    columns = [Column(header, justify="right", no_wrap=True) for header in numbers]
    caption = f"max and RMS error of the kernel and of eager PyTorch against fp64; smallest atol at rtol {RTOL:g}"
    shown = Table(Column("case", overflow="fold"), "tensor", *columns, title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False)
    shown.padding = (0, 1, 0, 0)
    case = ""
    for row in rows:
        values = (row.kernel.max, row.eager.max, row.kernel.rms, row.eager.rms, row.atol, row.eager_atol)
        name, case = ("" if row.case == case else row.case), row.case
        shown.add_row(name, row.tensor, *(f"{value:.1e}" for value in values), style="" if row.verdict.passed else "red")
    return shown
