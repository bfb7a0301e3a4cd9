"""Results copied over arguments."""

from __future__ import annotations

import torch

from npu_op_runtime.inplace import overwrite


def test_each_result_goes_to_its_tensor_and_missing_ones_are_left_out():
    first, second, third = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    overwrite((first, None, second, third), (torch.ones(2), torch.ones(2), None, torch.full((2,), 3.0)))
    assert (first.tolist(), second.tolist(), third.tolist()) == ([1.0, 1.0], [0.0, 0.0], [3.0, 3.0])
