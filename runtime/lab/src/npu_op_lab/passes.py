"""Runs the forward and the backward pass of one case and gives its results by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npu_op_runtime.spec import Case, OperatorSpec

from .execution import EAGER, Mode
from .inputs import Inputs
from .oracle import Verdict, check

Results = dict[str, "torch.Tensor | None"]

_FEW, _SEEDS = 32, 8


@dataclass(frozen=True)
class Forward:
    """Results of a forward pass and the leaves that its backward differentiates."""

    outputs: Results
    leaves: dict[str, torch.Tensor]

    def backward(self, upstream: Mapping[str, torch.Tensor]) -> Results:
        """Gradients, "grad of x": ..., for the incoming gradients by output; None where the operator gives none."""
        roots = {name: out for name, out in self.outputs.items() if out is not None and out.requires_grad}
        if not roots or not self.leaves:
            return {f"grad of {name}": None for name in self.leaves}
        incoming = [upstream[name] for name in roots]
        found = torch.autograd.grad(list(roots.values()), list(self.leaves.values()), incoming, allow_unused=True)
        return {f"grad of {name}": gradient for name, gradient in zip(self.leaves, found, strict=True)}


def forward(function: Callable[..., Any], case: Case, inputs: Mapping[str, Any], wanted: Collection[str]) -> Forward:
    """Calls `function(**inputs, **case.options)` with gradients recorded for the inputs named in `wanted`.

    A case tagged "inplace" overwrites its inputs, which autograd forbids for leaves: it is given clones of them.
    """
    leaves = {name: inputs[name].detach().requires_grad_() for name in wanted}
    passed = {name: leaf.clone() for name, leaf in leaves.items()} if "inplace" in case.tags else leaves
    return Forward(named(function(**{**inputs, **passed}, **case.options)), leaves)


def named(result: Any) -> Results:
    """An operator's result by name: "output", "output 0", ... or the fields of a named tuple."""
    if isinstance(result, torch.Tensor):
        return {"output": result}
    fields = getattr(result, "_fields", None) or [f"output {index}" for index in range(len(result))]
    return dict(zip(fields, result, strict=True))


def wanted(spec: OperatorSpec, case: Case, inputs: Mapping[str, Any], frozen: Collection[str] = ()) -> tuple[str, ...]:
    """The arguments of a case that get a gradient."""
    if "gradient-free" in case.tags:
        return ()
    given = {name: inputs.get(name) for name in spec.differentiable}
    return tuple(
        name for name, value in given.items() if isinstance(value, torch.Tensor) and value.is_floating_point() and name not in frozen
    )


def random_upstream(outputs: Results, seed: int, empty: bool = False) -> dict[str, torch.Tensor]:
    """Incoming gradients N(0, 1) in the dtype of each differentiable output, the same numbers whatever the device."""
    factory = Inputs(seed=seed, empty=empty)
    return {
        name: factory.randn(*out.shape, dtype=out.dtype).to(out.device)
        for name, out in outputs.items()
        if out is not None and out.requires_grad
    }


def moved(value: Any, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
    """A tensor on `device`, in `dtype` if it is floating (its complex twin if complex); anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if dtype is not None:
        dtype = dtype if value.is_floating_point() else dtype.to_complex() if value.is_complex() else None
    return value.detach().to(device=device, dtype=dtype)


@dataclass(frozen=True)
class Reference:
    """What the oracle compares with: results of one case by PyTorch in its own precision and in fp64, and the incoming gradients."""

    base: Results
    gold: Results
    upstream: dict[str, torch.Tensor]
    largest: int

    def judge(self, actual: Results) -> list[Verdict]:
        """One verdict per tensor of the reference."""
        return [check(name, actual.get(name), self.base[name], self.gold[name], self.terms(name)) for name in self.gold]

    @property
    def small(self) -> list[str]:
        """The results of so few elements that one draw of eager's errors says little of their size."""
        return [name for name, gold in self.gold.items() if gold is not None and gold.is_floating_point() and 0 < gold.numel() < _FEW]

    def terms(self, name: str) -> int:
        """How many elements of the largest tensor of the call go into one element of this result."""
        gold = self.gold[name]
        return 1 if gold is None or gold.numel() == 0 else max(1, self.largest // gold.numel())


def reference_results(
    spec: OperatorSpec, case: Case, *, device: str = "cpu", gold_device: str = "cpu", seed: int = 0, frozen: Collection[str] = ()
) -> Reference:
    """Runs the reference in the case's precision on `device` and in fp64 on `gold_device`, with the same incoming gradients.

    Raises:
        TypeError: the reference leaves fp64 for fp64 inputs: there would be no gold.
    """
    inputs = spec.make_inputs(case, Inputs(device, seed))
    names = wanted(spec, case, inputs, frozen)
    low = forward(spec.reference, case, inputs, names)
    upstream = random_upstream(low.outputs, seed + 1)
    base = {**low.outputs, **low.backward(upstream)}

    exact_inputs = {name: moved(value, gold_device, torch.float64) for name, value in spec.make_inputs(case, Inputs("cpu", seed)).items()}
    exact_upstream = {name: moved(value, gold_device, torch.float64) for name, value in upstream.items()}
    with _OnlyFp64(spec.name):
        exact = forward(spec.reference, case, exact_inputs, names)
        gold = {**exact.outputs, **exact.backward(exact_upstream)}
    sizes = [value.numel() for value in (*inputs.values(), *low.outputs.values()) if isinstance(value, torch.Tensor)]
    return Reference(base, gold, upstream, max(sizes, default=0))


class _OnlyFp64(TorchDispatchMode):
    """Raises where a computation on fp64 inputs leaves fp64."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.dtype != torch.float64:
            raise TypeError(f"reference of {self._name} must compute in float64 for float64 inputs ({func} gave {result.dtype})")
        return result


@dataclass(frozen=True)
class Call:
    """One call of an operator, ready to run: its inputs, the inputs that get a gradient, and the incoming gradients.

    `upstream` None stands for unwritten memory like each output, where only launches matter.
    """

    case: Case
    inputs: dict[str, Any]
    wanted: tuple[str, ...]
    upstream: dict[str, torch.Tensor] | None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that the operator is given."""
        return [value for value in (*self.inputs.values(), *(self.upstream or {}).values()) if isinstance(value, torch.Tensor)]

    def run(self, function: Callable[..., Any]) -> Results:
        """Outputs and gradients."""
        done = forward(function, self.case, self.inputs, self.wanted)
        upstream = random_upstream(done.outputs, seed=0, empty=True) if self.upstream is None else self.upstream
        if any(_unlike(done.outputs.get(name), gradient) for name, gradient in upstream.items()):
            return done.outputs  # no gradient can flow into an output of another shape: the oracle names it
        return {**done.outputs, **done.backward(upstream)}


def _unlike(output: torch.Tensor | None, gradient: torch.Tensor) -> bool:
    return output is None or output.shape != gradient.shape or output.dtype != gradient.dtype


def prepared(
    spec: OperatorSpec,
    case: Case,
    upstream: Mapping[str, torch.Tensor],
    *,
    device: str = "cpu",
    seed: int = 0,
    frozen: Collection[str] = (),
    layout: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Call:
    """The call of a case with fresh inputs.

    Args:
        upstream: incoming gradients, `Reference.upstream`.
        frozen: arguments that require no gradient.
        layout: lays out each input and incoming gradient anew, with the same values.
    """
    made = spec.make_inputs(case, Inputs(device, seed))
    inputs = {name: layout(value) if isinstance(value, torch.Tensor) else value for name, value in made.items()}
    incoming = {name: layout(value.to(device)) for name, value in upstream.items()}
    return Call(case, inputs, wanted(spec, case, inputs, frozen), incoming)


def unwritten(spec: OperatorSpec, case: Case) -> Call:
    """The call of a case on memory that is never touched, to see what it launches."""
    inputs = spec.make_inputs(case, Inputs(empty=True))
    return Call(case, inputs, wanted(spec, case, inputs), None)


def evaluate(
    spec: OperatorSpec,
    case: Case,
    *,
    function: Callable[..., Any] | None = None,
    mode: Mode = EAGER,
    seed: int = 0,
    frozen: Collection[str] = (),
    layout: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> list[Verdict]:
    """The oracle's verdict on every output and gradient of a case.

    Where a result has few elements (a loss, the gradient of a scalar parameter), eager may be exact by luck and a right
    kernel fail beside it: then eight seeds are run and their elements judged together.

    Args:
        function: what to judge instead of the spec's function (a peer, a compiled one).
        mode: where it runs.
        seed: of inputs and incoming gradients, the first one.
        frozen, layout: as in `prepared`.
    """
    runs: list[tuple[Reference, Results]] = []
    for each in range(seed, seed + _SEEDS):
        reference = reference_results(spec, case, device=mode.device, seed=each, frozen=frozen)
        call = prepared(spec, case, reference.upstream, device=mode.device, seed=each, frozen=frozen, layout=layout)
        with mode.enter():
            runs.append((reference, call.run(function or spec.function)))
        if not reference.small:
            return reference.judge(runs[0][1])
    return [_judged_together(name, runs) for name in runs[0][0].gold]


def _judged_together(name: str, runs: list[tuple[Reference, Results]]) -> Verdict:
    """One verdict on the elements of all runs; where a result is missing or of another shape, on the first run that fails by it."""
    terms = runs[0][0].terms(name)
    found = [(actual.get(name), reference.base[name], reference.gold[name]) for reference, actual in runs]
    shapes = {None if tensor is None else tensor.shape for triple in found for tensor in triple}
    if None in shapes or len(shapes) > 1:
        verdicts = [check(name, *triple, terms) for triple in found]
        return next((verdict for verdict in verdicts if not verdict.passed), verdicts[0])
    actual, base, gold = (torch.cat([tensor.reshape(-1) for tensor in same if tensor is not None]) for same in zip(*found, strict=True))
    return check(name, actual, base, gold, terms)


def with_dims(case: Case, **dims: int) -> Case:
    """The case with other sizes, named after them."""
    label = "-".join(f"{name}{size}" for name, size in dims.items())
    return replace(case, name=f"{case.name}-{label}", dims={**case.dims, **dims})
