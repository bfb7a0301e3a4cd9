from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

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


@pytest.fixture
def past(monkeypatch):
    """An op that doubles, by a kernel which counts its calls, on a device that has kernels: every one. Its op triples."""
    monkeypatch.setattr("npu_op_runtime.registration._on_npu", lambda tensor: True)
    calls = []

    def kernel(x):
        calls.append(x)
        return x * 2

    name = f"past{next(_numbers)}"
    return register_op("npu_op_test", f"{name}(Tensor x) -> Tensor", kernel=kernel, reference=lambda x: x * 3, fake=torch.empty_like), calls


_numbers = itertools.count()


def test_a_plain_tensor_on_a_device_goes_past_the_dispatcher(past):
    op, calls = past
    assert op(torch.ones(2)).tolist() == [2, 2]
    assert op(torch.nn.Parameter(torch.ones(2)).detach()).tolist() == [2, 2]
    assert len(calls) == 2


def test_a_tensor_on_another_device_does_not():
    calls = []
    op = register_op("npu_op_test", "elsewhere(Tensor x) -> Tensor", kernel=calls.append, reference=lambda x: x * 3, fake=torch.empty_like)
    assert op(torch.ones(2)).tolist() == [3, 3]
    assert op(torch.ones(2, device="meta")).device.type == "meta"
    assert calls == []


class Subclass(torch.Tensor):
    pass


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen = [*getattr(self, "seen", ()), function.name()]
        return function(*args, **(kwargs or {}))


def test_whoever_watches_sees_the_op(past):
    op, calls = past
    with Watching() as watching:
        assert op(torch.ones(2)).tolist() == [3, 3]
    assert any(name.startswith("npu_op_test::past") for name in watching.seen)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        op(torch.ones(2))
    assert any(event.key.startswith("npu_op_test::past") for event in profiled.key_averages())
    with FakeTensorMode():
        assert op(torch.ones(2)).shape == (2,)
    assert torch.func.vmap(op)(torch.ones(2, 3)).tolist() == [[3] * 3] * 2
    assert torch.jit.trace(op, torch.ones(2), check_trace=False)(torch.ones(2)).tolist() == [3, 3]
    assert calls == []


@pytest.mark.parametrize(
    "x",
    [torch.ones(2).as_subclass(Subclass), torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.complex64).conj().imag,
     torch._efficientzerotensor(2)],
    ids=["subclass", "conjugate", "negative", "zero"],
)  # fmt: skip
def test_a_tensor_that_is_more_than_its_memory_is_dispatched(past, x):
    op, calls = past
    torch.testing.assert_close(torch.Tensor(op(x).resolve_conj().resolve_neg()) if x.is_floating_point() else op(x), x * 3)
    assert calls == []


@pytest.fixture(params=["dispatched", "past the dispatcher"])
def doubling(request, monkeypatch):
    """An op that writes over its first argument, as a Triton kernel does: autograd does not see it."""
    if request.param != "dispatched":
        monkeypatch.setattr("npu_op_runtime.registration._on_npu", lambda tensor: True)

    def kernel(x, other):
        x.numpy()[:] *= 2

    return register_op(
        "npu_op_test", f"double{next(_numbers)}(Tensor(a!) x, Tensor(b!)? y) -> ()", kernel=kernel, reference=kernel, fake=lambda *_: None
    )  # fmt: skip


def test_autograd_knows_what_a_kernel_wrote_over(doubling):
    weight = torch.ones(2, requires_grad=True)
    with offline("Ascend910B4"):
        x = torch.ones(2)
        y = weight * x  # saves x
        doubling(x, None)
    assert x.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_tensor_of_inference_mode_can_be_written_over(doubling):
    with torch.inference_mode(), offline("Ascend910B4"):
        x, other = torch.ones(2), torch.ones(2)
        doubling(x, other)
    assert x.tolist() == [2, 2]


def test_a_compiled_call_holds_the_op(past):
    op, calls = past
    compiled = torch.compile(lambda x: op(x) + 1, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [4, 4]
    assert calls == []


@pytest.mark.parametrize("given", [1, np.float64(1.0), True], ids=repr)
def test_a_number_for_a_float_reaches_the_kernel_as_one(monkeypatch, given):
    monkeypatch.setattr("npu_op_runtime.registration._on_npu", lambda tensor: True)
    found = []
    op = register_op(
        "npu_op_test",
        f"floats{next(_numbers)}(Tensor x, float eps, int count) -> Tensor",
        kernel=lambda x, eps, count: found.append((eps, count)) or x,
        reference=lambda x, eps, count: x,
        fake=lambda x, eps, count: x,
    )
    op(torch.ones(2), given, 3)
    assert [type(one) for one in found[0]] == [float, int]
