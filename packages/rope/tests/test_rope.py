from __future__ import annotations

import math

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_rope import Rotary, apply_rotary, apply_rotary_reference
from npu_op_rope.spec import SPEC


class TestBattery(OperatorBattery):
    spec = SPEC


def _angles(sequence: int, width: int, interleaved: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(sequence).float(), 100.0 ** (-torch.arange(0, width, 2) / width))
    angles = angles.repeat_interleave(2, dim=-1) if interleaved else torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def test_half_is_llamas():
    """apply_rotary_pos_emb of transformers' Llama, written out."""
    q, k = torch.randn(2, 4, 7, 16), torch.randn(2, 2, 7, 16)
    cos, sin = (angle.expand(2, 7, 16) for angle in _angles(7, 16))

    def rotate_half(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., 8:], x[..., :8]), dim=-1)

    expected = [x * cos.unsqueeze(1) + rotate_half(x) * sin.unsqueeze(1) for x in (q, k)]
    for got, wanted in zip(apply_rotary(q, k, cos, sin), expected):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("interleaved", (False, True))
def test_pairs_turn_by_their_angle(interleaved):
    """As complex numbers: a pair times exp(i * angle)."""
    q = torch.randn(1, 2, 5, 8)
    cos, sin = _angles(5, 8, interleaved)
    rotated, _ = apply_rotary(q, None, cos, sin, interleaved=interleaved)
    a, b, turned_a, turned_b = (x[..., part] for x in (q, rotated) for part in _parts(interleaved))
    turn = torch.complex(cos[..., _parts(interleaved)[0]], sin[..., _parts(interleaved)[0]])
    torch.testing.assert_close(torch.complex(a, b) * turn, torch.complex(turned_a, turned_b))


def _parts(interleaved: bool) -> tuple[slice, slice]:
    return (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, 4), slice(4, 8))


def test_gradient_is_the_inverse_rotation():
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    cos, sin = _angles(5, 8)
    (rotated, _) = apply_rotary(q, None, cos, sin)
    (gradient,) = torch.autograd.grad(rotated, q, rotated.detach())
    torch.testing.assert_close(gradient, q.detach())


def test_module_is_the_function():
    q, k = torch.randn(1, 5, 2, 8), torch.randn(1, 5, 1, 8)
    cos, sin = _angles(5, 8)
    for got, wanted in zip(Rotary(unsqueeze_dim=2)(q, k, cos, sin), apply_rotary_reference(q, k, cos, sin, unsqueeze_dim=2)):
        assert torch.equal(got, wanted)


def test_inplace_returns_its_arguments_changed():
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 1, 5, 8)
    cos, sin = _angles(5, 8)
    wanted = apply_rotary_reference(q, k, cos, sin)
    got = apply_rotary(q, k, cos, sin, inplace=True)
    assert got[0] is q
    assert got[1] is k
    for tensor, expected in zip(got, wanted):
        torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize("compiled", (False, True))
def test_gradient_of_inplace(compiled):
    cos, sin = _angles(5, 8)
    leaves = [torch.randn(1, heads, 5, 8, requires_grad=True) for heads in (2, 1)]
    function = torch.compile(apply_rotary, backend="aot_eager", fullgraph=True) if compiled else apply_rotary
    tensors = [leaf * 1 for leaf in leaves]
    results = function(*tensors, cos, sin, inplace=True)
    assert all(result is tensor for result, tensor in zip(results, tensors))
    wanted = apply_rotary_reference(*leaves, cos, sin)
    upstream = [torch.randn_like(result) for result in wanted]
    gradients, expected = (torch.autograd.grad(rotated, leaves, upstream) for rotated in (results, wanted))
    torch.testing.assert_close((*results, *gradients), (*wanted, *expected))


@pytest.mark.parametrize("inplace", (False, True))
def test_a_dense_tensor_of_strided_columns_is_rotated(inplace):
    """empty_like() keeps its strides."""
    q, (cos, sin) = torch.randn(1, 2, 8, 5).mT, _angles(5, 6)
    wanted, _ = apply_rotary_reference(q, None, cos, sin)
    if inplace:
        torch.ops.npu_op_rope.rotate_(q, None, cos, sin, False, 1)
    torch.testing.assert_close(q if inplace else apply_rotary(q, None, cos, sin)[0], wanted)


def test_inplace_declares_its_writes():
    schema = torch.ops.npu_op_rope.rotate_.default._schema
    assert [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write] == ["q", "k"]
    schema = torch.ops.npu_op_rope.rotate.default._schema
    assert not any(argument.alias_info for argument in schema.arguments)


def test_an_expanded_gradient_is_right():
    """sum() hands back one element expanded."""
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    cos, sin = _angles(5, 8)
    (gradient,) = torch.autograd.grad(apply_rotary(q, None, cos, sin)[0].sum(), q)
    (wanted,) = torch.autograd.grad(apply_rotary_reference(q, None, cos, sin)[0].sum(), q)
    torch.testing.assert_close(gradient, wanted)


_Q, _C = torch.ones(2, 4, 5, 8), torch.ones(5, 8)
_COLUMNS = r"cos must have an even number of columns, at most the head_dim of q, 8 "


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], None, _C, _C), {}, TypeError, r"q must be a torch.Tensor \(got list\)"),
        ((_Q.double(), None, _C, _C), {}, TypeError, r"q must have dtype .* \(got float64\)"),
        ((_Q[0], None, _C, _C), {}, ValueError, r"q must have four dimensions \(got shape \(4, 5, 8\)\)"),
        ((_Q, _Q.half(), _C, _C), {}, TypeError, r"k must have dtype float32 \(got float16\)"),
        ((_Q, _Q[:, :, 1:], _C, _C), {}, ValueError, r"its own number of heads, \(2, 4, 5, 8\) \(got \(2, 4, 4, 8\)\)"),
        ((_Q, None, _C[1:], _C), {}, ValueError, r"cos must have shape \(5, columns\), \(1, 5, columns\) or .* \(got \(4, 8\)\)"),
        ((_Q, None, torch.ones(5, 7), _C), {}, ValueError, _COLUMNS + r"\(got 7\)"),
        ((_Q, None, torch.ones(5, 10), _C), {}, ValueError, _COLUMNS + r"\(got 10\)"),
        ((_Q, None, _C, _C[:, :4]), {}, ValueError, r"sin must have shape \(5, 8\) \(got \(5, 4\)\)"),
        ((_Q, None, _C, _C.to("meta")), {}, ValueError, r"sin must be on cpu like q \(got meta\)"),
        ((_Q, None, _C.clone().requires_grad_(), _C), {}, ValueError, r"cos must not require a gradient"),
        ((_Q, None, _C, _C), {"interleaved": "half"}, ValueError, r"interleaved must be one of False, True \(got 'half'\)"),
        ((_Q, None, _C, _C), {"inplace": None}, ValueError, r"inplace must be one of False, True \(got None\)"),
        ((_Q, None, _C, _C), {"unsqueeze_dim": 3}, ValueError, r"unsqueeze_dim must be one of 1, 2 \(got 3\)"),
        ((_Q[:1].expand(2, 4, 5, 8), None, _C, _C), {"inplace": True}, ValueError, r"q must have .* no expanded one"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        apply_rotary(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match=r"\(torch_npu.npu_rotary_mul\) cannot run: it needs an NPU tensor \(got cpu\)"):
        apply_rotary(_Q, None, _C, _C, implementation="vendor")


def test_no_tokens_give_no_tokens():
    q = torch.ones(2, 4, 0, 8, requires_grad=True)
    rotated, _ = apply_rotary(q, None, torch.ones(0, 8), torch.ones(0, 8))
    (gradient,) = torch.autograd.grad(rotated.sum(), q)
    assert rotated.shape == gradient.shape == q.shape
    assert math.isclose(float(gradient.sum()), 0.0)
