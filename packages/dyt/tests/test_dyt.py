from __future__ import annotations

import pytest
import torch

from npu_op_dyt import DyT, dyt, dyt_reference
from npu_op_dyt.op import _backward_launch, _forward_launch, _plan
from npu_op_dyt.spec import SPEC
from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_runtime.device import Target
from npu_op_runtime.soc import GATE_SOCS, get_soc

EXECUTED = [mode for mode in available_modes() if mode.executes]


class TestBattery(OperatorBattery):
    spec = SPEC


@pytest.mark.parametrize("backward", (False, True))
@pytest.mark.parametrize("soc", GATE_SOCS)
def test_strips_own_every_column_and_read_none_that_does_not_exist(soc, backward):
    row = get_soc(soc)
    target = Target("npu", row.vector_cores, row.ub_bytes)
    overlapping = 0
    for width in (*range(1, 9000, 61), 16384, 131072):
        for itemsize in (2, 4):
            plan = _plan(target, width, itemsize, backward)
            assert (plan.strips - 1) * plan.cols < width <= plan.strips * plan.cols
            assert not plan.overlap or plan.cols <= width
            overlapping += plan.overlap
    assert overlapping


def test_module_is_the_papers():
    """DyT as its authors write it: alpha starts at 0.5, gamma at 1, beta at 0."""
    x = torch.randn(3, 32)
    torch.testing.assert_close(DyT(32)(x), torch.tanh(0.5 * x))
    layer = DyT(32, init_alpha=2.0, bias=False)
    assert set(layer.state_dict()) == {"alpha", "gamma"}
    torch.testing.assert_close(layer(x), torch.tanh(2.0 * x))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    (
        ((4.0,), TypeError, r"hidden_size must be an int \(got 4.0\)"),
        ((0,), ValueError, r"hidden_size must be at least 1 \(got 0\)"),
        ((4, None), TypeError, r"init_alpha must be a number \(got None\)"),
    ),
)
def test_wrong_options_of_the_module_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        DyT(*arguments)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_it_saturates_without_overflow(mode):
    x = torch.tensor([[-3e38, -1e4, -50.0, 0.0, 50.0, 1e4, 3e38, float("inf"), float("-inf"), float("nan")]], device=mode.device)
    x.requires_grad_()
    with mode.enter():
        y = dyt(x, torch.ones(1, device=mode.device), torch.ones(10, device=mode.device))
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    torch.testing.assert_close(y, torch.tanh(x), equal_nan=True)
    # Where it is flat the slope is 0, not NaN.
    assert not gradient[0, [0, 1, 2, 4, 5, 6]].any()


@pytest.mark.parametrize("shape", ((), (1,)))
def test_alpha_may_be_a_scalar(shape):
    alpha = torch.full(shape, 0.5, requires_grad=True)
    dyt(torch.randn(3, 8), alpha, torch.ones(8)).sum().backward()
    assert alpha.grad.shape == shape


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], torch.ones(1), torch.ones(1)), {}, TypeError, r"x must be a torch.Tensor \(got list\)"),
        ((torch.ones(2, dtype=torch.int8), torch.ones(1), torch.ones(2)), {}, TypeError, r"x must have dtype .* \(got int8\)"),
        ((torch.tensor(1.0), torch.ones(1), torch.ones(1)), {}, ValueError, r"x must have at least one dimension \(got a scalar\)"),
        ((torch.ones(2, 4), 0.5, torch.ones(4)), {}, TypeError, r"alpha must be a torch.Tensor \(got float\)"),
        ((torch.ones(2, 4), torch.ones(2), torch.ones(4)), {}, ValueError, r"alpha must have shape \(1,\) or \(\) \(got \(2,\)\)"),
        ((torch.ones(2, 4), torch.ones(1), None), {}, TypeError, r"gamma must be a torch.Tensor \(got NoneType\)"),
        ((torch.ones(2, 4), torch.ones(1), torch.ones(3)), {}, ValueError, r"gamma must have shape \(4,\) \(got \(3,\)\)"),
        ((torch.ones(2, 4), torch.ones(1), torch.ones(4), torch.ones(4, device="meta")), {}, ValueError, r"beta must be on cpu like x"),
        ((torch.ones(2, 4), torch.ones(1), torch.ones(4)), {"implementation": "cuda"}, ValueError, r"implementation must be one of"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        dyt(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no Dynamic Tanh; use 'eager'"):
        dyt(torch.ones(2, 4), torch.ones(1), torch.ones(4), implementation="vendor")


def test_eager_is_the_reference():
    x, alpha, gamma, beta = torch.randn(4, 16), torch.randn(1), torch.randn(16), torch.randn(16)
    assert torch.equal(dyt(x, alpha, gamma, beta, implementation="eager"), dyt_reference(x, alpha, gamma, beta))


@pytest.mark.parametrize("mode", [mode for mode in EXECUTED if mode.kernels], ids=lambda mode: mode.name)
def test_a_launch_is_kept_for_the_like_of_a_call(mode):
    """The same sizes with another dtype of alpha are another call: on CUDA a launch holds what was compiled for its dtypes."""
    x, alpha, gamma = torch.randn(7, 32), torch.ones(1), torch.randn(32)

    def misses(alpha):
        before = [kept.cache_info().misses for kept in (_forward_launch, _backward_launch)]
        leaf = x.to(mode.device).requires_grad_()
        with mode.enter():
            dyt(leaf, alpha.to(mode.device), gamma.to(mode.device)).sum().backward()
        return [kept.cache_info().misses - count for kept, count in zip((_forward_launch, _backward_launch), before)]

    _forward_launch.cache_clear()
    _backward_launch.cache_clear()
    assert misses(alpha) == [1, 1]
    assert misses(alpha) == [0, 0]
    assert misses(alpha.bfloat16()) == [1, 1]
