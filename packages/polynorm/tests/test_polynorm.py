from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_lab.gradients import gradients_of
from npu_op_polynorm import PolyNorm, poly_norm, poly_norm_reference
from npu_op_polynorm.op import _backward_launch, _backward_plan, _forward_launch
from npu_op_polynorm.spec import SPEC
from npu_op_runtime.device import Target

KERNEL_MODES = [mode for mode in available_modes() if mode.executes and mode.kernels]


class TestBattery(OperatorBattery):
    spec = SPEC


def test_cases_judge_every_form_of_backward():
    forms = set()
    for case in SPEC.cases:
        if "bench" not in case.tags:
            plan, roomy = _backward_plan(Target("npu", 40, 192 * 1024), case.dims["H"], case.torch_dtype.itemsize)
            forms.add("wide" if not plan.resident else "roomy" if roomy else "pieces" if plan.fold > 1 else "rows")
    assert forms == {"wide", "roomy", "pieces", "rows"}


def test_reference_is_the_sum_of_three_normalised_powers():
    x, weight, bias = torch.randn(5, 64), torch.tensor([0.2, 0.3, 0.5]), torch.tensor(0.1)
    norm = torch.nn.functional.rms_norm
    expected = sum(w * norm(x**k, (64,), eps=1e-6) for w, k in zip(weight, (3, 2, 1))) + bias
    torch.testing.assert_close(poly_norm_reference(x, weight, bias), expected)


def test_module_starts_with_equal_weights():
    x = torch.randn(3, 32)
    torch.testing.assert_close(PolyNorm()(x), poly_norm_reference(x, torch.full((3,), 1 / 3), torch.zeros(1)))


def test_module_refuses_an_eps_that_is_no_number():
    with pytest.raises(TypeError, match=r"eps must be a number \(got '1e-6'\)"):
        PolyNorm("1e-6")


@pytest.mark.parametrize("shape", ((), (1,)))
def test_bias_may_be_a_scalar(shape):
    bias = torch.zeros(shape, requires_grad=True)
    poly_norm(torch.randn(3, 8), torch.ones(3), bias).sum().backward()
    torch.testing.assert_close(bias.grad, torch.full(shape, 24.0))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], torch.ones(3)), {}, TypeError, r"x must be a torch.Tensor \(got list\)"),
        ((torch.ones(2, dtype=torch.int8), torch.ones(3)), {}, TypeError, r"x must have dtype .* \(got int8\)"),
        ((torch.tensor(1.0), torch.ones(3)), {}, ValueError, r"x must have at least one dimension \(got a scalar\)"),
        ((torch.ones(2, 4), torch.ones(4)), {}, ValueError, r"weight must have shape \(3,\) \(got \(4,\)\)"),
        ((torch.ones(2, 4), torch.ones(3), torch.ones(2)), {}, ValueError, r"bias must have shape \(\) or \(1,\) \(got \(2,\)\)"),
        ((torch.ones(2, 4), torch.ones(3), 1.0), {}, TypeError, r"bias must be a torch.Tensor \(got float\)"),
        ((torch.ones(2, 4), torch.ones(3, device="meta")), {}, ValueError, r"weight must be on cpu like x \(got meta\)"),
        ((torch.ones(2, 4), torch.ones(3), None, "1e-6"), {}, TypeError, r"eps must be a number \(got '1e-6'\)"),
        ((torch.ones(2, 4), torch.ones(3)), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        poly_norm(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no PolyNorm; use 'eager'"):
        poly_norm(torch.ones(2, 4), torch.ones(3), implementation="vendor")


def test_eager_is_the_reference():
    x, weight, bias = torch.randn(4, 16), torch.randn(3), torch.randn(1)
    assert torch.equal(poly_norm(x, weight, bias, implementation="eager"), poly_norm_reference(x, weight, bias))


@pytest.mark.parametrize("mode", KERNEL_MODES, ids=lambda mode: mode.name)
def test_a_launch_is_kept_for_the_like_of_a_call(mode):
    """The same sizes with another dtype of the weight are another call: on CUDA a launch holds what was compiled for its dtypes."""
    x, weight = torch.randn(7, 32), torch.ones(3)

    def misses(weight):
        before = [kept.cache_info().misses for kept in (_forward_launch, _backward_launch)]
        leaf = x.to(mode.device).requires_grad_()
        with mode.enter():
            poly_norm(leaf, weight.to(mode.device)).sum().backward()
        return [kept.cache_info().misses - count for kept, count in zip((_forward_launch, _backward_launch), before)]

    _forward_launch.cache_clear()
    _backward_launch.cache_clear()
    assert misses(weight) == [1, 1]
    assert misses(weight) == [0, 0]
    assert misses(weight.bfloat16()) == [1, 1]


@pytest.mark.parametrize("width", (512, 20001))
@pytest.mark.parametrize("needs", ((True, False, False), (False, True, False), (False, False, True)))
@pytest.mark.parametrize("mode", KERNEL_MODES, ids=lambda mode: mode.name)
def test_a_gradient_is_the_same_whatever_others_are_wanted(mode, needs, width):
    """Of rows wider than UB, backward for x alone did not compile on an NPU."""
    given = torch.randn(3, width).bfloat16(), torch.randn(3), torch.randn(1)
    dy = torch.randn(3, width).bfloat16()
    (alone,) = gradients_of(poly_norm, given, needs, dy, mode)
    together = gradients_of(poly_norm, given, [True] * len(given), dy, mode)
    assert torch.equal(alone, together[needs.index(True)])
