from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_llama4_rope import Llama4Rotary, apply_llama4_rotary, apply_llama4_rotary_reference
from npu_op_llama4_rope.spec import SPEC


class TestBattery(OperatorBattery):
    spec = SPEC


def _freqs(*shape: int) -> torch.Tensor:
    return torch.polar(torch.ones(shape), torch.randn(shape))


def test_it_is_transformers_formula():
    """apply_rotary_emb of transformers' Llama 4, written out."""
    q, k, freqs = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8), _freqs(2, 5, 4)
    expected = [
        torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * freqs[:, :, None, :]).flatten(3) for x in (q, k)
    ]
    for got, wanted in zip(apply_llama4_rotary(q, k, freqs), expected):
        torch.testing.assert_close(got, wanted)


def test_packed_frequencies_are_the_complex_ones():
    q, freqs = torch.randn(1, 5, 2, 8), _freqs(5, 4)
    packed = torch.view_as_real(freqs).flatten(-2)
    assert torch.equal(apply_llama4_rotary(q, None, packed)[0], apply_llama4_rotary(q, None, freqs)[0])


def test_conjugate_frequencies_turn_back():
    q, freqs = torch.randn(1, 5, 2, 8), _freqs(5, 4)
    rotated, _ = apply_llama4_rotary(q, None, freqs)
    torch.testing.assert_close(apply_llama4_rotary(rotated, None, freqs.conj())[0], q)


def test_inplace_returns_its_arguments_changed():
    q, k, freqs = torch.randn(1, 5, 2, 8), torch.randn(1, 5, 1, 8), torch.randn(5, 8)
    wanted = apply_llama4_rotary_reference(q, k, freqs)
    got = apply_llama4_rotary(q, k, freqs, inplace=True)
    assert got[0] is q
    assert got[1] is k
    for tensor, expected in zip(got, wanted):
        torch.testing.assert_close(tensor, expected)


def test_inplace_declares_its_writes():
    schema = torch.ops.npu_op_llama4_rope.rotate_.default._schema
    assert [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write] == ["q", "k"]


def test_module_is_the_function():
    q, k, freqs = torch.randn(1, 5, 2, 8), torch.randn(1, 5, 1, 8), _freqs(5, 4)
    for got, wanted in zip(Llama4Rotary()(q, k, freqs), apply_llama4_rotary_reference(q, k, freqs)):
        torch.testing.assert_close(got, wanted)


_Q, _F = torch.ones(2, 5, 4, 8), torch.ones(5, 4, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    (
        (([1.0], None, _F), TypeError, r"q must be a torch.Tensor \(got list\)"),
        ((_Q, _Q.half(), _F), TypeError, r"k must have dtype float32 \(got float16\)"),
        ((_Q, None, None), TypeError, r"freqs_cis must be a torch.Tensor \(got NoneType\)"),
        ((_Q, None, _F.to(torch.complex128)), TypeError, r"freqs_cis must have dtype complex64 or .* \(got complex128\)"),
        ((_Q[..., :7], None, _F), ValueError, r"q must have an even head_dim \(got 7\)"),
        ((_Q, None, _F[1:]), ValueError, r"freqs_cis must have shape \(5, 4\), \(1, 5, 4\) or \(2, 5, 4\) \(got \(4, 4\)\)"),
        ((_Q, None, _F.real), ValueError, r"freqs_cis must have shape \(5, 8\), \(1, 5, 8\) or \(2, 5, 8\) \(got \(5, 4\)\)"),
        ((_Q, None, _F.clone().requires_grad_()), ValueError, r"freqs_cis must not require a gradient"),
        ((_Q, None, _F.to("meta")), ValueError, r"freqs_cis must be on cpu like q \(got meta\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        apply_llama4_rotary(*arguments)


def test_inplace_is_a_choice():
    with pytest.raises(ValueError, match=r"inplace must be one of False, True \(got None\)"):
        apply_llama4_rotary(_Q, None, _F, inplace=None)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="no op of torch_npu takes complex frequencies"):
        apply_llama4_rotary(_Q, None, _F, implementation="vendor")
