"""Liger-Kernel's Ascend operators in the emulator: their values against PyTorch, and two of their published faults found again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from npu_op_lab.emulator import FaultyKernel, OutOfBounds, emulate
from npu_op_lab.emulator.validation.liger import OPERATORS, hf_llama4_rope
from npu_op_lab.peers.liger import liger_ascend

_BF16 = torch.bfloat16


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _angles(dim: int) -> list[torch.Tensor]:
    angle = _randn(1, 16, dim // 2).repeat(1, 1, 2)
    return [angle.cos(), angle.sin()]


def _rotary(rotate: str) -> list[Any]:
    heads = [_randn(1, 16, 4, 64), _randn(1, 16, 2, 64)]
    if rotate == "pairs":
        return [*heads, torch.polar(torch.ones(1, 16, 32), _randn(1, 16, 32))]
    return [*(part.transpose(1, 2) for part in heads), *_angles(64)]


_OPERATORS = {operator.name: operator for operator in OPERATORS}
_EAGER = {name: operator.eager for name, operator in _OPERATORS.items()}
_CASES: dict[str, tuple[list[Any], Callable[..., Any]]] = {
    "rms_norm": ([_randn(16, 4096), _randn(4096)], _EAGER["rms_norm"]),
    "swiglu": ([_randn(16, 688), _randn(16, 688)], _EAGER["swiglu"]),
    "geglu": ([_randn(16, 688), _randn(16, 688)], _EAGER["geglu"]),
    "rope": (_rotary("halves"), _EAGER["rope"]),
    "llama4_rope": (_rotary("pairs"), hf_llama4_rope),
    "cross_entropy": ([_randn(16, 1000), torch.arange(16) * 50], F.cross_entropy),
    "softmax": ([_randn(16, 1000)], _EAGER["softmax"]),
    "kl_div": ([_randn(16, 1000).log_softmax(-1), _randn(16, 1000).softmax(-1)], _EAGER["kl_div"]),
    "dyt_beta=True": ([_randn(16, 1024), _randn(1), _randn(1024), _randn(1024)], _EAGER["dyt_beta=True"]),
}


@pytest.mark.parametrize("name", _CASES)
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    inputs, reference = _CASES[name]
    leaves = [value.clone().requires_grad_() for value in inputs if value.is_floating_point()]
    fixed = [value for value in inputs if not value.is_floating_point()]
    expected = _results(reference, leaves, fixed)
    with emulate() as run:
        actual = _results(_OPERATORS[name].liger, leaves, fixed)
    assert run.kernels
    for ours, theirs in zip(actual, expected, strict=True):
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def _results(function: Callable[..., Any], leaves: list[torch.Tensor], fixed: list[Any]) -> list[torch.Tensor | None]:
    # Clones: an operator may write over its inputs and over the incoming gradients.
    result = function(*(leaf.clone() for leaf in leaves), *fixed)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    upstream = [_randn(*out.shape) if out.dim() else torch.ones(()) for out in outputs]
    gradients = torch.autograd.grad(outputs, leaves[:2] if len(outputs) == 2 else leaves, upstream, allow_unused=True)
    return [*(out.detach() for out in outputs), *gradients]


def test_group_norm_reads_past_its_input_when_tasks_do_not_divide_over_the_grid() -> None:
    function = liger_ascend("group_norm").LigerGroupNormFunction
    with pytest.raises(OutOfBounds, match=r"_group_norm_forward_single_task_kernel at group_norm.py:\d+: hivm.hir.load"), emulate():
        function.apply(_randn(4, 100, 16), _randn(100), _randn(100), 100, 25, 1e-6)


def test_poly_norm_programs_race_for_the_gradient_of_the_weight() -> None:
    x, weight, bias = (value.requires_grad_() for value in (_randn(64, 4096), _randn(3), _randn(1)[0]))
    with pytest.raises(FaultyKernel, match=r"_poly_norm_backward.*store.*of program.*touch the same bytes"), emulate():
        liger_ascend("poly_norm").LigerPolyNormFunction.apply(x, weight, bias, 1e-6, False).sum().backward()
