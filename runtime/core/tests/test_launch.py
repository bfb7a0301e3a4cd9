from __future__ import annotations

import pytest
import torch

from npu_op_runtime.device import Target
from npu_op_runtime.launch import launch

NPU = Target("npu", 40, 196608)


class Kernel:
    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **constants: self.calls.append((grid, args, constants))


def test_no_programs_no_launch():
    kernel = Kernel()
    launch(kernel, 0, NPU, torch.empty(1), 1)
    assert kernel.calls == []


def test_num_warps_goes_to_cuda_only():
    kernel = Kernel()
    launch(kernel, 3, NPU, torch.empty(1), 1, num_warps=8, BLOCK=2)
    assert kernel.calls == [((3,), (1,), {"BLOCK": 2})]


def test_a_grid_above_the_limit_is_refused_before_the_launch():
    kernel = Kernel()
    with pytest.raises(ValueError, match=r"programs must be at most 65535 on the NPU \(got 65536\)"):
        launch(kernel, 65536, NPU, torch.empty(1))
    assert kernel.calls == []
