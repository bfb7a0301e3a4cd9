"""Checks of how an operator fits into torch.compile, captured graphs and the dispatcher."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_map_only

from npu_op_runtime.spec import Case, OperatorSpec

from ..capture import capture
from ..execution import Mode
from ..inputs import Inputs
from ..passes import evaluate, prepared, reference_results, with_dims
from ..watch import Recorder
from .check import check, require
from .selection import first, pure_representatives, representatives

# No seed that the oracle's inputs are drawn with.
_CAPTURED_SEED = 1000

# Dynamo compiles once for a value and once more for any value of its kind; 0 and 1 it takes apart from the rest.
ROW_COUNTS = (2, 3, 5, 8, 13)


@check(pure_representatives, "eager", "cuda", "npu")
def check_torch_compile(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """torch.compile(fullgraph=True) takes it, forward and backward, and the results are right."""
    torch._dynamo.reset()
    compiled = torch.compile(spec.function, backend=_backend(mode), fullgraph=True)
    require(evaluate(spec, case, mode=mode, function=compiled))


@check(first, "eager", "cuda", "npu")
def check_graph_for_every_row_count(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """A compiled graph serves every number of rows."""
    counts = _graphs(spec, mode, [(with_dims(case, **{spec.rows: rows}), {}) for rows in ROW_COUNTS])
    assert counts[-1] == counts[1], f"graphs compiled after each of the row counts {ROW_COUNTS}: {counts}"


@check(first, "eager", "cuda", "npu")
def check_graph_for_every_float(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """A compiled graph serves every value of a float argument."""
    for name, values in float_arguments(spec, case):
        counts = _graphs(spec, mode, [(case, {name: value}) for value in values])
        assert counts[-1] == counts[1], f"graphs compiled after each of {name} = {', '.join(f'{value:g}' for value in values)}: {counts}"


@check(pure_representatives, "eager", "interpreter", "cuda", "npu")
def check_opcheck(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Every registered op that the call uses passes torch.library.opcheck on the very arguments that it got."""
    call = prepared(spec, case, reference_results(spec, case, device=mode.device).upstream, device=mode.device)
    with mode.enter(), Recorder() as recorder:
        call.run(spec.function)
    ops = [used for used in recorder.calls if used.func.namespace != "aten"]
    assert ops, "no registered op was called"
    for used in ops:
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (used.args, used.kwargs))
        with mode.enter():
            torch.library.opcheck(used.func, args, kwargs)


@check(representatives, "eager", "cuda", "npu")
def check_graph_replay(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Captured in a graph with some inputs and replayed with others, its forward pass gives the others' results."""

    def replayed(**arguments: Any) -> Any:
        static = {**arguments, **spec.make_inputs(case, Inputs(mode.device, seed=_CAPTURED_SEED))}
        result, replay = capture(lambda: spec.function(**static), mode.device)
        for name, value in static.items():
            if isinstance(value, torch.Tensor):
                value.copy_(arguments[name])
        replay()
        return result

    require(evaluate(spec, case, mode=mode, function=replayed, frozen=spec.differentiable))


def float_arguments(spec: OperatorSpec, case: Case) -> Iterator[tuple[str, list[float]]]:
    """The float arguments of a call and five values for each: its own, then ones between it and 0 (or above 0)."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(spec.function).parameters.items()}
    for name, value in {**defaults, **case.options}.items():
        if isinstance(value, float):
            yield name, [value * (1 - step / 32) if value else step / 32 for step in range(5)]


def _graphs(spec: OperatorSpec, mode: Mode, calls: Iterable[tuple[Case, dict[str, float]]]) -> list[int]:
    """How many graphs have been compiled after each of these calls of one compiled function."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled: Callable[..., Any] = torch.compile(spec.function, backend=counter, fullgraph=True)
    counts = []
    for case, options in calls:
        case = replace(case, options={**case.options, **options})
        require(evaluate(spec, case, mode=mode, function=compiled))
        counts.append(counter.frame_count)
    return counts


def _backend(mode: Mode) -> str:
    # On a GPU the default backend; on the CPU the one that needs no C++ compiler.
    return "inductor" if mode.kind == "cuda" else "aot_eager"
