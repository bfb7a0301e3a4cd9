from __future__ import annotations

import math

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_softmax import Softmax, softmax, softmax_reference
from npu_op_softmax.spec import SPEC

EXECUTED = [mode for mode in available_modes() if mode.executes]


class TestBattery(OperatorBattery):
    spec = SPEC


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("width", (1000, 4096))
def test_bf16_rows_sum_to_one_within_a_rounding(mode, width):
    x = torch.randn(64, width, generator=torch.Generator().manual_seed(0)).to(mode.device, torch.bfloat16)
    with mode.enter():
        y = softmax(x)
    # Each value is off by at most half a rounding, 2^-9 of it; errors of a row are independent, so their sum is far smaller.
    assert (y.double().sum(-1) - 1).abs().max() < 2**-10


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("width", (96, 20000))
def test_infinities_and_nan_are_those_of_torch(mode, width):
    x = torch.randn(8, width, generator=torch.Generator().manual_seed(0))
    x[0] = -math.inf
    x[1, : width // 2 + 5] = -math.inf
    x[2, 3] = math.inf
    x[3, width - 1] = math.nan
    x[4, 1] = 3e38
    x[5] = -3e38
    with mode.enter():
        y = softmax(x.to(mode.device)).cpu()
    torch.testing.assert_close(y, torch.softmax(x, -1), equal_nan=True)


def test_module_is_a_drop_in_for_torch():
    x = torch.randn(3, 4, 8)
    for dim in (0, 1, -1):
        torch.testing.assert_close(Softmax(dim)(x), torch.nn.Softmax(dim)(x))
    torch.testing.assert_close(Softmax(None)(x), torch.softmax(x, -1))
    assert isinstance(Softmax(), torch.nn.Softmax)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0],), {}, TypeError, r"x must be a torch.Tensor \(got list\)"),
        ((torch.ones(2, dtype=torch.float64),), {}, TypeError, r"x must have dtype .* \(got float64\)"),
        ((torch.ones(2, 4), 2), {}, ValueError, r"dim must be a dimension of x, -2 to 1 \(got 2, x has 2 dimensions\)"),
        ((torch.ones(2, 4), -3), {}, ValueError, r"dim must be a dimension of x, -2 to 1 \(got -3, x has 2 dimensions\)"),
        ((torch.tensor(1.0),), {}, ValueError, r"x must have at least one dimension \(got a scalar\)"),
        ((torch.ones(2, 4), 1.0), {}, TypeError, r"dim must be an int \(got 1.0\)"),
        ((torch.ones(2, 4), True), {}, TypeError, r"dim must be an int \(got True\)"),
        ((torch.ones(2, 4),), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        softmax(*arguments, **options)


def test_module_refuses_what_is_no_dimension():
    with pytest.raises(TypeError, match=r"dim must be an int \(got 'last'\)"):
        Softmax("last")


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no softmax besides torch.softmax; use 'eager'"):
        softmax(torch.ones(2, 4), implementation="vendor")


def test_eager_is_the_reference():
    x = torch.randn(4, 16)
    assert torch.equal(softmax(x, implementation="eager"), softmax_reference(x))
