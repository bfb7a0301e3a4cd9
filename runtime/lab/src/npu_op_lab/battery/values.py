"""Checks of what an operator computes."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings

from npu_op_runtime.spec import DTYPES, Case, OperatorSpec

from ..execution import Mode
from ..inputs import Inputs
from ..mutants import MUTANTS
from ..oracle import check as judge
from ..passes import evaluate, prepared, reference_results, wanted, with_dims
from .check import check, require
from .selection import (
    differentiable_representatives,
    first,
    inference_representatives,
    representatives,
    values,
)
from .shapes import neighbours

EXECUTED = ("eager", "interpreter", "cuda", "npu")


@check(values, *EXECUTED, "cuda_form", "emulator")
def check_oracle(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Every output and gradient is as near to fp64 as PyTorch's, or nearly so."""
    require(evaluate(spec, case, mode=mode))


@check(values, "eager")
def check_oracle_can_fail(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """No case is vacuous: each output and gradient, turned wrong, is rejected; the right one is accepted."""
    reference = reference_results(spec, case)
    for name, gold in reference.gold.items():
        base = reference.base[name]
        if gold is None or base is None or not gold.is_floating_point() or _without_a_right_digit(base, gold):
            continue
        right = gold.to(base.dtype)
        terms = reference.terms(name)
        require([judge(name, right, base, gold, terms)])
        for mutant_name, mutant in MUTANTS.items():
            wrong = mutant(right)
            # Scaling by a few roundings is within what a running sum may lose; a mutant that changes nothing is right.
            if torch.equal(wrong, right) or (mutant_name == "scaled" and terms > 1):
                continue
            assert not judge(name, wrong, base, gold, terms).passed, f"{name}: the oracle accepts {mutant_name}"


def _without_a_right_digit(base: torch.Tensor, gold: torch.Tensor) -> bool:
    # Eager itself is as wrong as zeros are (a gradient that cancels out): nothing can be asked of a kernel.
    return bool(2 * (base.double() - gold).norm() >= gold.norm())


@check(first, "eager", "interpreter")
def check_any_shape(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Rows, free dims and dtype as Hypothesis draws them, from none and one on."""

    @settings(max_examples=16, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(neighbours(spec))
    def holds(drawn: Case) -> None:
        require(evaluate(spec, drawn, mode=mode))

    holds()


@check(first, "eager")
def check_dtypes(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """The executed cases cover fp16, bf16 and fp32."""
    missing = set(DTYPES) - {case.dtype for case in values(spec)}
    assert not missing, f"no executed case in {', '.join(sorted(missing))}"


@check(representatives, *EXECUTED, "emulator")
def check_empty(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """No rows: outputs as the reference's, gradients of parameters zero."""
    empty = with_dims(case, **{spec.rows: 0})
    reference = reference_results(spec, empty, device=mode.device)
    with mode.enter():
        actual = prepared(spec, empty, reference.upstream, device=mode.device).run(spec.function)
    require(reference.judge(actual))
    for name, tensor in actual.items():
        if name.startswith("grad of") and tensor is not None:
            assert not tensor.any(), f"{name} must be zero without rows"


@check(differentiable_representatives, *EXECUTED)
def check_frozen(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Arguments that require no gradient get none, alone and all together; the other gradients stay right."""
    names = wanted(spec, case, spec.make_inputs(case, Inputs(empty=True)))
    for frozen in {(name,) for name in names} | {names}:
        require(evaluate(spec, case, mode=mode, frozen=frozen))


@check(inference_representatives, *EXECUTED)
def check_gradient_refused(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """An operator without a backward refuses, by name, an argument that requires a gradient; under no_grad it takes it."""
    inputs = spec.make_inputs(case, Inputs(mode.device))
    for name, tensor in inputs.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            continue
        passed = {**inputs, name: tensor.detach().requires_grad_(), **case.options}
        try:
            with mode.enter():
                spec.function(**passed)
        except NotImplementedError as error:
            assert f"{name} requires a gradient" in str(error), f"the refusal must name {name}: {error}"
        else:
            raise AssertionError(f"a gradient of {name} is dropped silently")
        with mode.enter(), torch.no_grad():
            spec.function(**passed)
