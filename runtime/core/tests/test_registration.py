from __future__ import annotations

import pytest
import torch

from npu_op_runtime.device import offline
from npu_op_runtime.registration import reference_gradients, register_op


def test_the_cpu_runs_the_reference_and_offline_the_kernel():
    op = register_op("npu_op_test", "pick(Tensor x) -> Tensor", kernel=lambda x: x + 1, reference=lambda x: x + 2, fake=torch.empty_like)
    x = torch.zeros(3)
    assert op(x).tolist() == [2, 2, 2]
    with offline("Ascend910B4"):
        assert op(x).tolist() == [1, 1, 1]
    assert op(torch.empty(3, device="meta")).device.type == "meta"


def test_every_device_has_an_implementation():
    register_op("npu_op_test", "keys(Tensor x) -> Tensor", kernel=lambda x: x, reference=lambda x: x, fake=torch.empty_like)
    for key in ("CPU", "CUDA", "PrivateUse1", "Meta"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key("npu_op_test::keys", key)


def test_two_copies_of_an_op_clash():
    register_op("npu_op_test", "twice(Tensor x) -> Tensor", kernel=lambda x: x, reference=lambda x: x, fake=torch.empty_like)
    with pytest.raises(RuntimeError):
        register_op("npu_op_test", "twice(Tensor x) -> Tensor", kernel=lambda x: x, reference=lambda x: x, fake=torch.empty_like)


def test_reference_gradients_compute_what_is_needed_only():
    x, w = torch.tensor([2.0]), torch.tensor([3.0])
    dx, dw = reference_gradients(lambda x, w: x * x * w, (x, w), torch.tensor([1.0]), (True, False))
    assert dx.item() == 12.0
    assert dw is None
    assert not x.requires_grad
