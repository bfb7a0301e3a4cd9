"""Run by test_battery in a process of its own, in which Triton interprets kernels: the battery on a real kernel."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from npu_op_lab.battery import CHECKS, OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_runtime.device import target_of

from .toy_kernel import toy_kernel

GUARD_BANDS = next(check for check in CHECKS if check.name == "guard_bands")


@triton.jit
def _round_and_reduce_kernel(X, ROUNDED, HIGHEST, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(ROUNDED + tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :], x.to(tl.bfloat16))
    tl.store(HIGHEST + tl.arange(0, 2), tl.max(x, axis=1))


@triton.jit
def _fma_kernel(X, Y):
    x = tl.load(X + tl.arange(0, 1))
    tl.store(Y + tl.arange(0, 1), tl.fma(x, x, tl.load(Y + tl.arange(0, 1))))


class TestBattery(OperatorBattery):
    spec = toy_kernel("none")


def test_there_are_the_modes_of_the_interpreter():
    assert [mode.name for mode in available_modes()] == ["interpreter", "cuda_form"]


def test_in_the_form_of_cuda_kernels_are_planned_for_it():
    interpreter, form = available_modes()
    with interpreter.enter():
        assert target_of(torch.empty(1)).backend == "interpreter"
    with form.enter():
        assert target_of(torch.empty(1)).backend == "cuda"
    assert target_of(torch.empty(1)).backend == "interpreter"


def test_a_fused_multiply_add_rounds_once():
    x, y = torch.tensor([1 + 2**-12]), torch.tensor([-(1 + 2**-11)])
    with available_modes()[0].enter():
        _fma_kernel[(1,)](x, y)
    assert y.item() == 2**-24


def test_a_store_outside_is_caught():
    spec, mode = toy_kernel("writes outside"), available_modes()[0]
    with pytest.raises(AssertionError, match="written outside: after empty"):
        GUARD_BANDS.run(spec, spec.cases[0], mode)


def test_it_rounds_to_bf16_as_torch_does_and_takes_maxima_of_numbers():
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    x[0, :4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1.9999999, -3.0e38])  # two ties to even, a carry, near the largest
    x[1, 0] = float("nan")
    rounded, highest = torch.empty(2, 64, dtype=torch.bfloat16), torch.empty(2)
    mode = available_modes()[0]
    with mode.enter():
        _round_and_reduce_kernel[(1,)](x, rounded, highest, N=64)
    assert torch.equal(rounded.nan_to_num(), x.bfloat16().nan_to_num())
    assert torch.equal(highest, torch.stack([x[0].max(), x[1, 1:].max()]))
