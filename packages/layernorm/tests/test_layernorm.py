from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_lab.gradients import gradients_of
from npu_op_layernorm import LayerNorm, layer_norm, layer_norm_reference
from npu_op_layernorm.spec import SPEC

EXECUTED = [mode for mode in available_modes() if mode.executes]


class TestBattery(OperatorBattery):
    spec = SPEC


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize(("mean", "deviation"), ((100.0, 0.01), (1e4, 1.0)))
@pytest.mark.parametrize("width", (1024, 4096, 20001))
def test_a_mean_far_above_the_deviations(mode, mean, deviation, width):
    """E[x^2] - mean^2 is negative here, so NaN elsewhere. As near to fp64 as PyTorch, whose mean is rounded to fp32 as well."""
    x = mean + deviation * torch.randn(4, width, generator=torch.Generator().manual_seed(0))
    dy = torch.randn(4, width, generator=torch.Generator().manual_seed(1))

    def run(function, x):
        x = x.clone().requires_grad_()
        y = function(x)
        return y.detach().cpu(), torch.autograd.grad(y, x, dy.to(x))[0].cpu()

    def torchs(x):
        return torch.nn.functional.layer_norm(x, (width,))

    gold, base = run(torchs, x.double()), run(torchs, x)
    with mode.enter():
        ours = run(layer_norm, x.to(mode.device))
    for mine, theirs, right in zip(ours, base, gold):
        largest = right.abs().max()
        assert (mine - right).abs().max() <= 2 * (theirs - right).abs().max() + 2**-22 * largest + 2**-24 * mean / deviation * largest


def test_reference_is_torchs():
    x, weight, bias = torch.randn(5, 64).bfloat16(), torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    assert torch.equal(layer_norm_reference(x, weight, bias), torch.nn.functional.layer_norm(x, (64,), weight, bias))
    expected = torch.nn.functional.layer_norm(x.float(), (64,), weight.float(), bias.float()).bfloat16()
    assert torch.equal(layer_norm_reference(x, weight.float(), bias), expected)


@pytest.mark.parametrize("options", ({}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}))
def test_module_is_a_drop_in_for_torch(options):
    ours, theirs = LayerNorm(32, **options), torch.nn.LayerNorm(32, **options)
    for parameter in theirs.parameters():
        parameter.data.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 32)
    torch.testing.assert_close(ours(x), theirs(x))
    assert isinstance(ours, torch.nn.LayerNorm)


def test_wrong_options_of_the_module_are_named():
    with pytest.raises(ValueError, match=r"normalized_shape must be an int or a one-element shape \(got \(4, 8\)\)"):
        LayerNorm((4, 8))
    with pytest.raises(TypeError, match=r"eps must be a number \(got None\)"):
        LayerNorm(8, eps=None)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0],), {}, TypeError, r"x must be a torch.Tensor \(got list\)"),
        ((torch.ones(2, dtype=torch.float64),), {}, TypeError, r"x must have dtype .* \(got float64\)"),
        ((torch.tensor(1.0),), {}, ValueError, r"x must have at least one dimension \(got a scalar\)"),
        ((torch.ones(2, 4), torch.ones(3)), {}, ValueError, r"weight must have shape \(4,\) \(got \(3,\)\)"),
        ((torch.ones(2, 4), None, torch.ones(3)), {}, ValueError, r"bias must have shape \(4,\) \(got \(3,\)\)"),
        ((torch.ones(2, 4), torch.ones(4, dtype=torch.int32)), {}, TypeError, r"weight must have dtype .* \(got int32\)"),
        ((torch.ones(2, 4), None, torch.ones(4, device="meta")), {}, ValueError, r"bias must be on cpu like x \(got meta\)"),
        ((torch.ones(2, 4), None, None, "small"), {}, TypeError, r"eps must be a number \(got 'small'\)"),
        ((torch.ones(2, 4),), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        layer_norm(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no LayerNorm besides torch.nn.functional.layer_norm; use 'eager'"):
        layer_norm(torch.ones(2, 4), implementation="vendor")


def test_eager_is_the_reference():
    x, weight, bias = torch.randn(4, 16), torch.randn(16), torch.randn(16)
    assert torch.equal(layer_norm(x, weight, bias, implementation="eager"), layer_norm_reference(x, weight, bias))


@pytest.mark.parametrize("width", (512, 20001))
@pytest.mark.parametrize("needs", ((True, False, False), (False, True, False), (False, False, True)))
@pytest.mark.parametrize("mode", [mode for mode in EXECUTED if mode.kernels], ids=lambda mode: mode.name)
def test_a_gradient_is_the_same_whatever_others_are_wanted(mode, needs, width):
    """Of rows wider than UB, backward for the parameters alone did not compile."""
    given = torch.randn(3, width).bfloat16(), torch.randn(width), torch.randn(width)
    dy = torch.randn(3, width).bfloat16()
    (alone,) = gradients_of(layer_norm, given, needs, dy, mode)
    together = gradients_of(layer_norm, given, [True] * len(given), dy, mode)
    assert torch.equal(alone, together[needs.index(True)])
