from __future__ import annotations

import pytest
import torch

from npu_op_lab.emulator import emulate
from npu_op_runtime.device import target_of
from npu_op_runtime.partials import sum_partials


@pytest.mark.parametrize(("count", "width", "extra"), [(40, 300, 3), (16, 128, 1), (2, 40, 0), (1, 40, 2), (5, 0, 9)])
def test_columns_are_summed_and_the_last_ones_into_one_element(count, width, extra):
    partials = torch.randn(count, width + extra, generator=torch.Generator().manual_seed(0))
    scalar = torch.empty(1, dtype=torch.bfloat16) if extra else None
    with emulate("Ascend910B4"):
        sums = sum_partials(partials, torch.float16, target_of(partials), scalar=scalar, scalar_columns=extra)
    exact = partials.double()
    torch.testing.assert_close(sums.double(), exact[:, :width].sum(0), rtol=1e-3, atol=1e-4)
    if scalar is not None:
        torch.testing.assert_close(scalar.double(), exact[:, width:].sum().view(1), rtol=1e-2, atol=0)


def test_one_programs_sums_need_no_launch():
    partials = torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    with emulate("Ascend910B4") as run:
        sums = sum_partials(partials, torch.bfloat16, target_of(partials))
    assert not run.launches
    torch.testing.assert_close(sums, partials[0].bfloat16(), rtol=0, atol=0)


def test_no_partials_are_sums_of_nothing():
    partials, scalar = torch.empty(0, 12), torch.ones(1)
    with emulate("Ascend910B4") as run:
        sums = sum_partials(partials, torch.float32, target_of(partials), scalar=scalar, scalar_columns=2)
    assert not run.launches
    assert sums.tolist() == [0.0] * 10
    assert scalar.item() == 0.0
