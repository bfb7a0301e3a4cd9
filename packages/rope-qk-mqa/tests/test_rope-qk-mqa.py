from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_rope_qk_mqa import RopeQKMQA, fused_rope_qk_mqa, rope_qk_mqa_reference
from npu_op_rope_qk_mqa.spec import SPEC
from npu_op_runtime import get_soc


class TestBattery(OperatorBattery):
    spec = SPEC


def _angles(tokens: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(tokens).float(), 100.0 ** (-torch.arange(half) / half))
    return angles.cos(), angles.sin()


def _parts(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The pairs as complex numbers."""
    return torch.complex(x[..., ::2], x[..., 1::2]) if interleaved else torch.complex(*x.chunk(2, dim=-1))


@pytest.mark.parametrize("interleaved", (False, True))
def test_pairs_turn_by_their_angle(interleaved):
    """As complex numbers: a pair times exp(i * angle), for all heads of q and the one of k."""
    q, k = torch.randn(5, 3, 8), torch.randn(5, 8)
    cos, sin = _angles(5, 4)
    q_out, k_out = fused_rope_qk_mqa(q, k, cos, sin, interleaved=interleaved)
    turn = torch.complex(cos, sin)
    torch.testing.assert_close(_parts(q_out, interleaved), _parts(q, interleaved) * turn[:, None])
    torch.testing.assert_close(_parts(k_out, interleaved), _parts(k, interleaved) * turn)


def test_interleaved_is_that_of_transformers_but_for_the_order_of_columns():
    """apply_rotary_pos_emb_interleave of transformers' GLM-5 and DeepSeek-V3, written out: it leaves the pairs parted, here they stay."""
    q, cos_sin = torch.randn(7, 4, 16), _angles(7, 8)
    cos, sin = (torch.cat([angle, angle], dim=-1)[:, None, :8] for angle in cos_sin)
    q1, q2 = q[..., 0::2], q[..., 1::2]
    parted = torch.cat([q1 * cos - q2 * sin, q2 * cos + q1 * sin], dim=-1)
    ours, _ = fused_rope_qk_mqa(q, q[:, 0], *cos_sin, interleaved=True, implementation="eager")
    assert torch.equal(torch.cat([ours[..., ::2], ours[..., 1::2]], dim=-1), parted)


def test_half_is_that_of_transformers():
    """apply_rotary_pos_emb, written out."""
    q, k, cos_sin = torch.randn(7, 4, 16), torch.randn(7, 1, 16), _angles(7, 8)
    cos, sin = (torch.cat([angle, angle], dim=-1)[:, None] for angle in cos_sin)
    for got, x in zip(fused_rope_qk_mqa(q, k, *cos_sin, interleaved=False, implementation="eager"), (q, k), strict=True):
        assert torch.equal(got, x * cos + torch.cat((-x[..., 8:], x[..., :8]), dim=-1) * sin)


def test_columns_behind_the_rotary_ones_pass_through():
    q, k = torch.randn(5, 3, 12), torch.randn(5, 1, 12)
    cos, sin = _angles(5, 4)
    for interleaved in (False, True):
        got = fused_rope_qk_mqa(q, k, cos, sin, interleaved=interleaved, rotary_dim=8)
        turned = fused_rope_qk_mqa(q[..., :8], k[..., :8], cos, sin, interleaved=interleaved)
        for out, part, x in zip(got, turned, (q, k), strict=True):
            assert torch.equal(out[..., :8], part)
            assert torch.equal(out[..., 8:], x[..., 8:])


def test_in_place_over_the_rotary_columns_of_wider_heads():
    """What follows a projection to nope | rope columns: no slice, no concatenation."""
    heads, latent = torch.randn(5, 3, 24), torch.randn(5, 40)
    cos, sin = _angles(5, 4)
    q, k = heads[..., 16:], latent[:, 32:]
    wanted = rope_qk_mqa_reference(q, k, cos, sin, interleaved=True)
    before = heads[..., :16].clone(), latent[:, :32].clone()
    got = fused_rope_qk_mqa(q, k, cos, sin, interleaved=True, inplace=True)
    assert got[0] is q
    assert got[1] is k
    for tensor, expected in zip(got, wanted, strict=True):
        torch.testing.assert_close(tensor, expected)
    assert torch.equal(heads[..., :16], before[0])
    assert torch.equal(latent[:, :32], before[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (lambda x: (x[:, :2], x[:, 1:2], x.new_ones(5, 4), x.new_ones(5, 4)), "k must share no element with q"),
        (lambda x: (x, x, x.new_ones(5, 4), x.new_ones(5, 4)), "k must share no element with q"),
        (lambda x: (x[:, :2], x[:, 2], x[:, 1, :4], x.new_ones(5, 4)), "cos must share no element with q"),
        (lambda x: (x[:, :2], x[:, 2], x.new_ones(5, 4), x[:, 2, 4:]), "sin must share no element with k"),
    ),
)
def test_in_place_over_what_is_read_is_refused(arguments, message):
    """Programs run in any order: one would read what another has written."""
    x = torch.randn(5, 3, 8)
    before = x.clone()
    with pytest.raises(ValueError, match=message):
        fused_rope_qk_mqa(*arguments(x), interleaved=True, inplace=True)
    assert torch.equal(x, before)


def test_in_place_over_columns_side_by_side():
    """Heads of q, the one of k, and the angles in one row of memory."""
    x = torch.randn(5, 48)
    q, k, cos, sin = x[:, 8:24].unflatten(1, (2, 8)), x[:, 24:32], x[:, 32:36], x[:, :4]
    wanted = rope_qk_mqa_reference(q, k, cos, sin, interleaved=True)
    for got, expected in zip(fused_rope_qk_mqa(q, k, cos, sin, interleaved=True, inplace=True), wanted, strict=True):
        torch.testing.assert_close(got, expected)


def test_in_place_declares_its_writes():
    schema = torch.ops.npu_op_rope_qk_mqa.rotate_.default._schema
    assert [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write] == ["q", "k"]
    schema = torch.ops.npu_op_rope_qk_mqa.rotate.default._schema
    assert not any(argument.alias_info for argument in schema.arguments)


def test_module_is_the_function():
    q, k = torch.randn(5, 2, 16), torch.randn(5, 1, 16)
    angles = _angles(5, 4)
    got = RopeQKMQA(interleaved=True, rotary_dim=8)(q, k, *angles)
    for ours, theirs in zip(got, fused_rope_qk_mqa(q, k, *angles, interleaved=True, rotary_dim=8), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.skipif(all(mode.kind != "emulator" for mode in available_modes()), reason="needs the emulator")
@pytest.mark.parametrize("soc", ("Ascend910B3", "Ascend910B4"))
@pytest.mark.parametrize(
    ("heads", "nope", "width", "interleaved"),
    ((128, 128, 64, True), (64, 192, 64, True), (32, 0, 128, True), (64, 0, 128, False)),
    ids=("deepseek-v3", "glm-5", "glm-5-indexer", "deepseek-v3.2-indexer"),
)
def test_a_prefill_is_at_the_roof(soc, heads, nope, width, interleaved):
    """Modelled: what its least bytes need, 64 columns of 4096 tokens in place, over the time of the kernel."""
    from npu_op_lab.emulator import emulate, gm_bandwidth

    tokens, columns = 4096, 64
    q, k = torch.empty(tokens, heads, nope + width, dtype=torch.bfloat16)[..., nope:], torch.empty(tokens, width, dtype=torch.bfloat16)
    cos, sin = torch.empty(tokens, columns, dtype=torch.bfloat16).chunk(2, dim=-1)
    with emulate(soc, values=False) as run:
        fused_rope_qk_mqa(q, k, cos, sin, interleaved=interleaved, rotary_dim=columns, inplace=True)
    (kernel,) = run.kernels
    least = (2 * (heads + 1) + 1) * tokens * columns * q.element_size()
    assert least / gm_bandwidth(get_soc(soc), "measured") > 0.85 * kernel.seconds


_Q, _K, _C = torch.ones(5, 4, 8), torch.ones(5, 8), torch.ones(5, 4)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], _K, _C, _C), {}, TypeError, r"q must be a torch.Tensor \(got list\)"),
        ((_Q, None, _C, _C), {}, TypeError, r"k must be a torch.Tensor \(got NoneType\)"),
        ((_Q.double(), _K, _C, _C), {}, TypeError, r"q must have dtype .* \(got float64\)"),
        ((_Q, _K.half(), _C, _C), {}, TypeError, r"k must have dtype float32 \(got float16\)"),
        ((_Q[0], _K, _C, _C), {}, ValueError, r"q must have three dimensions, .* \(got shape \(4, 8\)\)"),
        ((_Q, _K[1:], _C, _C), {}, ValueError, r"k must have shape \(5, heads, 8\) or \(5, 8\) \(got \(4, 8\)\)"),
        ((_Q, _K, torch.ones(5, 8), _C), {}, ValueError, r"cos must have shape \(5, 4\) \(got \(5, 8\)\)"),
        ((_Q, _K, _C, _C[1:]), {}, ValueError, r"sin must have shape \(5, 4\) \(got \(4, 4\)\)"),
        ((_Q, _K, _C, _C.to("meta")), {}, ValueError, r"sin must be on cpu like q \(got meta\)"),
        ((_Q[:, :0], _K, _C, _C), {}, ValueError, r"q must have a head and a column at least \(got shape \(5, 0, 8\)\)"),
        ((_Q, _Q[:, :0], _C, _C), {}, ValueError, r"k must have a head and a column at least \(got shape \(5, 0, 8\)\)"),
        ((_Q, _K, _C, _C), {"inplace": "yes"}, ValueError, r"inplace must be one of False, True \(got 'yes'\)"),
        ((_Q, _K, _C, _C), {"interleaved": "half"}, ValueError, r"interleaved must be one of False, True \(got 'half'\)"),
        ((_Q, _K, _C, _C), {"rotary_dim": 5}, ValueError, r"rotary_dim must be even and at most the head_dim of q, 8 \(got 5\)"),
        ((_Q, _K, _C, _C), {"rotary_dim": 10}, ValueError, r"rotary_dim must be even and at most the head_dim of q, 8 \(got 10\)"),
        ((_Q, _K, _C, _C), {"rotary_dim": 8.0}, TypeError, r"rotary_dim must be an int \(got 8.0\)"),
        ((_Q[:, :1].expand(5, 4, 8), _K, _C, _C), {"inplace": True}, ValueError, r"q must have .* no expanded one"),
        ((_Q, _K, _C, _C), {"implementation": "vendor"}, NotImplementedError, "no op of torch_npu takes"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        fused_rope_qk_mqa(*arguments, **{"interleaved": False, **options})
