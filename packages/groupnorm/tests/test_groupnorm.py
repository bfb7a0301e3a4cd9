from __future__ import annotations

import pytest
import torch

from npu_op_groupnorm import GroupNorm, group_norm, group_norm_reference
from npu_op_groupnorm.plan import plan_groups
from npu_op_groupnorm.spec import SPEC
from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_runtime.device import Target

EXECUTED = [mode for mode in available_modes() if mode.executes]
KERNELS = [mode for mode in EXECUTED if mode.kernels]


class TestBattery(OperatorBattery):
    spec = SPEC


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize(("mean", "deviation"), ((100.0, 0.01), (1e4, 1.0)))
@pytest.mark.parametrize("shape", ((2, 8, 64), (1, 4, 6001), (4, 64)), ids=("resident", "wide", "narrow"))
def test_a_mean_far_above_the_deviations(mode, mean, deviation, shape):
    """E[x^2] - mean^2 is negative here, so NaN elsewhere. As near to fp64 as PyTorch, whose mean is rounded to fp32 as well."""
    x = mean + deviation * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def run(function, x):
        x = x.clone().requires_grad_()
        y = function(x, 2)
        return y.detach().cpu(), torch.autograd.grad(y, x, dy.to(x))[0].cpu()

    gold, base = (run(torch.nn.functional.group_norm, inputs) for inputs in (x.double(), x))
    with mode.enter():
        ours = run(group_norm, x.to(mode.device))
    for mine, theirs, right in zip(ours, base, gold):
        largest = right.abs().max()
        assert (mine - right).abs().max() <= 2 * (theirs - right).abs().max() + 2**-22 * largest + 2**-24 * mean / deviation * largest


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize("spread", ("normal", "one element"))
def test_gradients_of_bf16_whose_mean_is_far_above_the_deviations(mode, spread):
    """The mean is taken off sums there and not off every element: as far above as bf16 can hold, that costs less than its rounding."""
    generator = torch.Generator().manual_seed(0)
    x = 100 + 0.5 * torch.randn(2, 8, 64, generator=generator) if spread == "normal" else torch.ones(2, 8, 64)
    if spread == "one element":
        x[:, ::4, 3] += 2**-7
    x, dy, weight = (tensor.bfloat16() for tensor in (x, *(torch.randn(size, generator=generator) for size in (x.shape, (8,)))))

    def run(function, dtype, device="cpu"):
        leaves = [tensor.to(device, dtype).requires_grad_() for tensor in (x, weight)]
        gradients = torch.autograd.grad(function(leaves[0], 2, leaves[1], None, 1e-10), leaves, dy.to(device, dtype))
        return [gradient.cpu().double() for gradient in gradients]

    with mode.enter():
        ours = run(group_norm, torch.bfloat16, mode.device)
    for mine, right in zip(ours, run(torch.nn.functional.group_norm, torch.float64)):
        assert (mine - right).abs().max() <= 2**-8 * right.abs().max()


@pytest.mark.parametrize("depth", (1, 2, 7, 37, 127, 320, 4096))
@pytest.mark.parametrize("spatial", (1, 7, 49, 4096, 20001, 1 << 22))
@pytest.mark.parametrize("itemsize", (2, 4))
@pytest.mark.parametrize("streams", (2, 3))
def test_tiles_cover_a_group_and_fit(depth, spatial, itemsize, streams):
    plan = plan_groups(Target("npu", 40, 192 * 1024), 32, depth, spatial, itemsize, streams, streams, dense=True)
    assert plan.cols * itemsize % 32 == 0
    assert plan.groups * plan.slots * plan.cols * (2 * streams * itemsize + 8) <= 192 * 1024
    if plan.layout == "narrow":
        assert plan.cols >= depth * spatial
    elif plan.layout == "resident":
        assert plan.slots * plan.fold == depth and plan.groups % plan.fold == 0 and plan.cols >= spatial
    else:
        assert depth % (plan.groups * plan.slots if depth > 1 else 1) == 0
        assert (plan.cols < 2 * spatial or spatial < 32) and plan.groups * plan.slots >= 2


def test_a_copy_is_told_of():
    x = torch.randn(2, 8, 4, 6).to(memory_format=torch.channels_last)
    modes = [mode for mode in EXECUTED if mode.kind != "eager"]
    for mode in modes:
        with mode.enter(), pytest.warns(UserWarning, match="its groups are not contiguous"):
            y = group_norm(x.to(mode.device), 2)
        torch.testing.assert_close(y.cpu(), group_norm_reference(x, 2))
    y = group_norm(x, 2, implementation="eager")
    torch.testing.assert_close(y, torch.nn.functional.group_norm(x, 2))


def test_reference_is_torchs():
    x, weight, bias = torch.randn(3, 8, 5).bfloat16(), torch.randn(8).bfloat16(), torch.randn(8).bfloat16()
    assert torch.equal(group_norm_reference(x, 2, weight, bias), torch.nn.functional.group_norm(x, 2, weight, bias))
    expected = torch.nn.functional.group_norm(x.float(), 2, weight.float(), bias.float()).bfloat16()
    assert torch.equal(group_norm_reference(x, 2, weight.float(), bias), expected)
    expected = torch.nn.functional.group_norm(x.float(), 2, None, bias.float()).bfloat16()
    assert torch.equal(group_norm_reference(x, 2, None, bias), expected)


@pytest.mark.parametrize("options", ({}, {"affine": False}, {"eps": 0.1}))
def test_module_is_a_drop_in_for_torch(options):
    ours, theirs = GroupNorm(4, 32, **options), torch.nn.GroupNorm(4, 32, **options)
    for parameter in theirs.parameters():
        parameter.data.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 32, 5)
    torch.testing.assert_close(ours(x), theirs(x))
    assert isinstance(ours, torch.nn.GroupNorm)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    (
        ((0, 4), ValueError, r"num_groups must be at least 1 \(got 0\)"),
        ((2, 4.0), TypeError, r"num_channels must be an int \(got 4.0\)"),
        ((3, 4), ValueError, "num_channels.* must be divisible by num_groups"),
        ((2, 4, None), TypeError, r"eps must be a number \(got None\)"),
    ),
)
def test_wrong_options_of_the_module_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        GroupNorm(*arguments)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], 1), {}, TypeError, r"x must be a torch.Tensor \(got list\)"),
        ((torch.ones(2, 4, dtype=torch.float64), 1), {}, TypeError, r"x must have dtype .* \(got float64\)"),
        ((torch.ones(4), 1), {}, ValueError, r"x must have shape \(N, C, \*\) \(got \(4,\)\)"),
        ((torch.ones(2, 4), 2.0), {}, TypeError, r"num_groups must be an int \(got 2.0\)"),
        ((torch.ones(2, 4), 0), {}, ValueError, r"num_groups must be at least 1 \(got 0\)"),
        ((torch.ones(2, 4), 3), {}, ValueError, r"num_groups must divide the 4 channels of x \(got 3\)"),
        ((torch.ones(2, 4), 2, torch.ones(3)), {}, ValueError, r"weight must have shape \(4,\) \(got \(3,\)\)"),
        ((torch.ones(2, 4), 2, None, torch.ones(3)), {}, ValueError, r"bias must have shape \(4,\) \(got \(3,\)\)"),
        ((torch.ones(2, 4), 2, torch.ones(4, dtype=torch.int32)), {}, TypeError, r"weight must have dtype .* \(got int32\)"),
        ((torch.ones(2, 4), 2, None, torch.ones(4, device="meta")), {}, ValueError, r"bias must be on cpu like x \(got meta\)"),
        ((torch.ones(2, 4), 2, None, None, None), {}, TypeError, r"eps must be a number \(got None\)"),
        ((torch.ones(2, 4), 2), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        group_norm(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no GroupNorm besides torch.nn.functional.group_norm; use 'eager'"):
        group_norm(torch.ones(2, 4), 2, implementation="vendor")
