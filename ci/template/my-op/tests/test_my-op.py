from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_my_op import MyOp, my_op, my_op_reference
from npu_op_my_op.spec import SPEC


class TestBattery(OperatorBattery):
    spec = SPEC


def test_module_is_the_function():
    x = torch.randn(3, 8)
    assert torch.equal(MyOp()(x), my_op(x))


def test_eager_is_the_reference():
    x = torch.randn(3, 8)
    assert torch.equal(my_op(x, implementation="eager"), my_op_reference(x))


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ([1.0], TypeError, r"x must be a torch.Tensor \(got list\)"),
        (torch.ones(2, dtype=torch.int8), TypeError, r"x must have dtype .* \(got int8\)"),
    ],
)
def test_wrong_arguments_are_named(argument, error, message):
    with pytest.raises(error, match=message):
        my_op(argument)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no fused op for it"):
        my_op(torch.ones(2), implementation="vendor")
