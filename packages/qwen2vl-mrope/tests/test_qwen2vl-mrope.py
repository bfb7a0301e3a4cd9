from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_qwen2vl_mrope import MultimodalRotary, apply_multimodal_rotary, apply_multimodal_rotary_reference
from npu_op_qwen2vl_mrope.spec import SPEC
from npu_op_runtime.launch import Launch


class TestBattery(OperatorBattery):
    spec = SPEC


@pytest.mark.parametrize("axis", (0, 1, 2))
def test_each_axis_turns_its_section_only(axis):
    """Angles on one axis leave the columns of the other two as they are."""
    sections, q = (1, 3, 4), torch.randn(1, 2, 5, 16)
    angles = torch.zeros(3, 1, 5, 16)
    angles[axis] = 1.0
    rotated, _ = apply_multimodal_rotary(q, None, angles.cos(), angles.sin(), sections)
    first = sum(sections[:axis])
    turned = torch.zeros(16, dtype=torch.bool)
    turned[first : first + sections[axis]] = turned[8 + first : 8 + first + sections[axis]] = True
    assert torch.equal(rotated[..., ~turned], q[..., ~turned])
    assert (rotated[..., turned] != q[..., turned]).all()


def test_gradient_is_the_inverse_rotation():
    q = torch.randn(1, 2, 5, 16, requires_grad=True)
    angles = torch.randn(3, 1, 5, 8).repeat(1, 1, 1, 2)
    rotated, _ = apply_multimodal_rotary(q, None, angles.cos(), angles.sin(), (2, 3, 3))
    (gradient,) = torch.autograd.grad(rotated, q, rotated.detach())
    torch.testing.assert_close(gradient, q.detach())


def test_inplace_returns_its_arguments_changed():
    q, k, cos, sin = torch.randn(1, 2, 5, 8), torch.randn(1, 1, 5, 8), torch.randn(3, 1, 5, 8), torch.randn(3, 1, 5, 8)
    wanted = apply_multimodal_rotary_reference(q, k, cos, sin, (1, 1, 2))
    got = apply_multimodal_rotary(q, k, cos, sin, (1, 1, 2), inplace=True)
    assert got[0] is q
    assert got[1] is k
    for tensor, expected in zip(got, wanted):
        torch.testing.assert_close(tensor, expected)


def test_inplace_declares_its_writes():
    schema = torch.ops.npu_op_qwen2vl_mrope.rotate_.default._schema
    assert [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write] == ["q", "k"]


def test_module_is_the_function():
    q, k, cos, sin = torch.randn(1, 5, 2, 16), torch.randn(1, 5, 1, 16), torch.randn(3, 1, 5, 16), torch.randn(3, 1, 5, 16)
    for got, wanted in zip(MultimodalRotary([2, 3, 3], 2)(q, k, cos, sin), apply_multimodal_rotary_reference(q, k, cos, sin, [2, 3, 3], 2)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("mode", [mode for mode in available_modes() if mode.kernels and mode.executes], ids=lambda mode: mode.name)
def test_angles_of_one_batch_serve_all_without_a_copy(mode, monkeypatch):
    launched = []
    run = Launch.__call__
    monkeypatch.setattr(Launch, "__call__", lambda launch, *tensors: launched.extend(tensors[-2:]) or run(launch, *tensors))
    q, cos, sin = (
        torch.randn(2, 2, 5, 16, device=mode.device),
        *(torch.randn(3, 1, 5, 16, device=mode.device).expand(3, 2, 5, 16) for _ in range(2)),
    )
    with mode.enter():
        rotated, _ = apply_multimodal_rotary(q, None, cos, sin, (2, 3, 3))
    torch.testing.assert_close(rotated, apply_multimodal_rotary_reference(q, None, cos, sin, (2, 3, 3))[0])
    assert [angle.stride(1) for angle in launched] == [0, 0]


_Q, _C = torch.ones(2, 4, 5, 8), torch.ones(3, 2, 5, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    (
        (([1.0], None, _C, _C, (1, 1, 2)), TypeError, r"q must be a torch.Tensor \(got list\)"),
        ((_Q, _Q.half(), _C, _C, (1, 1, 2)), TypeError, r"k must have dtype float32 \(got float16\)"),
        ((_Q, None, _C, _C, (1, 1, 1)), ValueError, r"mrope_section must sum to half of the head_dim of q, 4 \(got \[1, 1, 1\]\)"),
        ((_Q, None, _C, _C, (2, 2)), ValueError, r"mrope_section must be three sizes, none below 0 \(got \[2, 2\]\)"),
        ((_Q, None, _C, _C, (-1, 3, 2)), ValueError, r"mrope_section must be three sizes, none below 0 \(got \[-1, 3, 2\]\)"),
        ((_Q, None, _C, _C, 4), TypeError, r"mrope_section must be a list or tuple of three int \(got 4\)"),
        ((_Q, None, _C, _C, (1, 1, 2.0)), TypeError, r"mrope_section must be a list or tuple of three int \(got \(1, 1, 2.0\)\)"),
        ((_Q, None, _C[:1], _C, (1, 1, 2)), ValueError, r"cos must have shape \(3, 2, 5, 8\) \(got \(1, 2, 5, 8\)\)"),
        ((_Q, None, _C, _C[..., :4], (1, 1, 2)), ValueError, r"sin must have shape \(3, 2, 5, 8\) \(got \(3, 2, 5, 4\)\)"),
        ((_Q, None, _C.clone().requires_grad_(), _C, (1, 1, 2)), ValueError, r"cos must not require a gradient"),
        ((_Q, None, _C, _C, (1, 1, 2), 0), ValueError, r"unsqueeze_dim must be one of 1, 2 \(got 0\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        apply_multimodal_rotary(*arguments)


def test_inplace_is_a_choice():
    with pytest.raises(ValueError, match=r"inplace must be one of False, True \(got None\)"):
        apply_multimodal_rotary(_Q, None, _C, _C, (1, 1, 2), inplace=None)


def test_module_checks_its_options():
    with pytest.raises(ValueError, match="unsqueeze_dim must be one of 1, 2"):
        MultimodalRotary([1, 1, 2], 3)
    with pytest.raises(ValueError, match="mrope_section must be three sizes"):
        MultimodalRotary([2, 2])


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="npu_mrope takes positions and a cache"):
        apply_multimodal_rotary(_Q, None, _C, _C, (1, 1, 2), implementation="vendor")
