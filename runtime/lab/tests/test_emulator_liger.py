"""Liger-Kernel's Ascend operators in the emulator: the oracle on their values, and two of their published faults found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from npu_op_lab.emulator import FaultyKernel, OutOfBounds, emulate
from npu_op_lab.emulator.validation.liger import OPERATORS, hf_llama4_rope
from npu_op_lab.execution import Mode
from npu_op_lab.passes import evaluate
from npu_op_lab.peers.liger import liger_ascend
from npu_op_runtime.spec import Case, InputFactory, OperatorSpec, Traffic

_F32 = torch.float32


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _normal(*shapes: tuple[int, ...]) -> Callable[[InputFactory], list[torch.Tensor]]:
    return lambda factory: [factory.randn(*shape, dtype=_F32) for shape in shapes]


def _rope(factory: InputFactory) -> list[torch.Tensor]:
    """q and k as a projection leaves them, seen as (B, heads, S, D), and the angles of both halves."""
    heads = [factory.randn(1, 16, count, 64, dtype=_F32).transpose(1, 2) for count in (4, 2)]
    angle = factory.randn(1, 16, 32, dtype=_F32).repeat(1, 1, 2)
    return [*heads, angle.cos(), angle.sin()]


def _llama4_rope(factory: InputFactory) -> list[torch.Tensor]:
    heads = [factory.randn(1, 16, count, 64, dtype=_F32) for count in (4, 2)]
    return [*heads, torch.polar(torch.ones(1, 16, 32), factory.randn(1, 16, 32, dtype=_F32))]


def _distributions(factory: InputFactory) -> list[torch.Tensor]:
    logits = [factory.randn(16, 1000, dtype=_F32) for _ in range(2)]
    return [logits[0].log_softmax(-1), logits[1].softmax(-1)]


_OPERATORS = {operator.name: operator for operator in OPERATORS}
_EAGER = {name: operator.eager for name, operator in _OPERATORS.items()}
# inputs, how many of them, the first ones, get a gradient, and the formula
_CASES: dict[str, tuple[Callable[[InputFactory], Sequence[torch.Tensor]], int, Callable[..., Any]]] = {
    "rms_norm": (_normal((16, 4096), (4096,)), 2, _EAGER["rms_norm"]),
    "swiglu": (_normal((16, 688), (16, 688)), 2, _EAGER["swiglu"]),
    "geglu": (_normal((16, 688), (16, 688)), 2, _EAGER["geglu"]),
    "rope": (_rope, 2, _EAGER["rope"]),
    "llama4_rope": (_llama4_rope, 2, hf_llama4_rope),
    "cross_entropy": (lambda factory: [factory.randn(16, 1000, dtype=_F32), torch.arange(16) * 50], 1, F.cross_entropy),
    "softmax": (_normal((16, 1000)), 1, _EAGER["softmax"]),
    "kl_div": (_distributions, 1, _EAGER["kl_div"]),
    "dyt_beta=True": (_normal((16, 1024), (1,), (1024,), (1024,)), 4, _EAGER["dyt_beta=True"]),
}
# They may write over their inputs, which autograd forbids for leaves.
_CASE = Case("values", {"T": 16}, "float32", tags=frozenset({"values", "inplace"}))


def _spec(name: str) -> OperatorSpec:
    """The operator as the oracle's machinery takes it: arguments by name, in order."""
    make, count, eager = _CASES[name]
    return OperatorSpec(
        name,
        (_CASE,),
        lambda _, factory: {f"input {index}": value for index, value in enumerate(make(factory))},
        differentiable=tuple(f"input {index}" for index in range(count)),
        function=lambda **inputs: _OPERATORS[name].liger(*inputs.values()),
        reference=lambda **inputs: eager(*inputs.values()),
        traffic=lambda _: Traffic(0, 0),
        peers={},
        bench_case=lambda *_: _CASE,
    )


@pytest.mark.parametrize("name", _CASES)
def test_the_oracle_passes_values_and_gradients(name: str) -> None:
    @contextmanager
    def enter() -> Iterator[None]:
        with emulate() as run:
            yield
        assert run.kernels

    verdicts = evaluate(_spec(name), _CASE, mode=Mode("emulator", "cpu", kernels=True, enter=enter))
    assert len(verdicts) == (2 if "rope" in name else 1) + _CASES[name][1]
    assert [str(verdict) for verdict in verdicts if not verdict.passed] == []


def test_a_missing_gradient_does_not_pass() -> None:
    def without_weight(**inputs: torch.Tensor) -> Any:
        return _EAGER["rms_norm"](inputs["input 0"], inputs["input 1"].detach())

    (failed,) = [verdict for verdict in evaluate(_spec("rms_norm"), _CASE, function=without_weight) if not verdict.passed]
    assert str(failed) == "grad of input 1: None came where the reference gives a tensor"


def test_group_norm_reads_past_its_input_when_tasks_do_not_divide_over_the_grid() -> None:
    function = liger_ascend("group_norm").LigerGroupNormFunction
    with pytest.raises(OutOfBounds, match=r"_group_norm_forward_single_task_kernel at group_norm.py:\d+: hivm.hir.load"), emulate():
        function.apply(_randn(4, 100, 16), _randn(100), _randn(100), 100, 25, 1e-6)


def test_poly_norm_programs_race_for_the_gradient_of_the_weight() -> None:
    x, weight, bias = (value.requires_grad_() for value in (_randn(64, 4096), _randn(3), _randn(1)[0]))
    with pytest.raises(FaultyKernel, match=r"_poly_norm_backward.*store.*of program.*touch the same bytes"), emulate():
        liger_ascend("poly_norm").LigerPolyNormFunction.apply(x, weight, bias, 1e-6, False).sum().backward()
