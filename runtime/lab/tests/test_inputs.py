from __future__ import annotations

import pytest
import torch

from npu_op_lab.inputs import Inputs, poison, sliced


def test_a_seed_gives_the_same_tensors():
    one, other = (Inputs(seed=3) for _ in range(2))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert torch.equal(one.randn(4, 5, dtype=dtype), other.randn(4, 5, dtype=dtype))
    assert torch.equal(one.randint(0, 99, 50), other.randint(0, 99, 50))


def test_seeds_and_draws_differ():
    factory = Inputs(seed=3)
    first = factory.randn(9, dtype=torch.float32)
    assert not torch.equal(first, factory.randn(9, dtype=torch.float32))
    assert not torch.equal(first, Inputs(seed=4).randn(9, dtype=torch.float32))


def test_a_low_precision_tensor_is_the_fp32_one_rounded_once():
    exact = Inputs(seed=1).randn(99, dtype=torch.float32, scale=0.2, offset=1.0)
    assert torch.equal(Inputs(seed=1).randn(99, dtype=torch.bfloat16, scale=0.2, offset=1.0), exact.bfloat16())


def test_scale_and_offset():
    drawn = Inputs().randn(20000, dtype=torch.float32, scale=0.5, offset=3.0)
    assert drawn.mean() == pytest.approx(3.0, abs=0.02)
    assert drawn.std() == pytest.approx(0.5, abs=0.02)


def test_integers_stay_in_their_range():
    drawn = Inputs().randint(2, 5, 1000, dtype=torch.int32)
    assert drawn.dtype == torch.int32
    assert set(drawn.tolist()) == {2, 3, 4}


def test_unwritten_tensors_cost_no_memory():
    """A hundred times the memory of the machine."""
    factory = Inputs(empty=True)
    before = _resident_bytes()
    kept = [factory.randn(1 << 17, 1 << 12, dtype=torch.bfloat16), factory.randint(0, 9, 1 << 27)]
    assert kept[0].shape == (1 << 17, 1 << 12)
    assert _resident_bytes() - before < 1 << 26


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_a_sliced_tensor_has_the_values_and_no_dense_row():
    tensor = torch.randn(2, 3, 7)
    view = sliced(tensor)
    assert torch.equal(view, tensor)
    assert view.stride() == (36, 12, 1)
    assert torch.empty(0).set_(view.untyped_storage()).isnan().sum() == 2 * 3 * 5


@pytest.mark.parametrize("tensor", [torch.ones(5), torch.ones(()), torch.ones(0, 5)], ids=["vector", "scalar", "empty"])
def test_what_has_no_rows_is_not_sliced(tensor):
    assert sliced(tensor) is tensor


def test_poison():
    assert torch.full((2,), poison(torch.bfloat16), dtype=torch.bfloat16).isnan().all()
    assert poison(torch.int32) == -(2**31)
    assert poison(torch.bool) is True
