from __future__ import annotations

from npu_op_lab.bench.measurement import minimum_bytes
from npu_op_runtime.spec import Traffic


def test_a_forward_without_gradient_has_bytes_of_its_own_where_the_spec_gives_them():
    modes = ("no-grad-forward", "forward", "backward", "full")
    assert [minimum_bytes(Traffic(3, 2), mode) for mode in modes] == [3, 3, 2, 5]
    assert [minimum_bytes(Traffic(3, 2, no_grad_forward=2), mode) for mode in modes] == [2, 3, 2, 5]
