from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_op_runtime.device import Target
from npu_op_runtime.rotary import contiguous_heads, plan_heads, require_overwritable

_NPU, _CUDA = Target("npu", 40, 192 * 1024), Target("cuda", 132, 0)


@given(
    heads=st.tuples(st.integers(1, 130), st.integers(0, 130)),
    half=st.integers(1, 256),
    rest=st.integers(0, 64),
    target=st.sampled_from((_NPU, _CUDA)),
    itemsize=st.sampled_from((2, 4)),
    interleaved=st.booleans(),
    head_major=st.booleans(),
    words=st.booleans(),
)
def test_pieces_cover_all_heads(heads, half, rest, target, itemsize, interleaved, head_major, words):
    plan = plan_heads(target, heads, half, rest, itemsize, interleaved, head_major, max(heads), words)
    assert plan.tokens >= 1
    assert plan.q_heads * plan.pieces >= heads[0]
    assert plan.k_heads * plan.pieces >= heads[1]
    assert plan.half_block >= half
    assert plan.rest_block >= rest


def test_heads_far_apart_go_into_tiles_of_few():
    assert plan_heads(_NPU, (32, 8), 64, 0, 2, False, False, 4).q_heads <= 4


def test_a_head_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="a head of 40000 columns does not fit the UB of 196608 bytes"):
        plan_heads(_NPU, (1, 1), 20000, 0, 2, False, False, 1)


def test_only_what_a_kernel_cannot_walk_is_copied():
    x = torch.zeros(2, 3, 4, 8)
    walked = (x, x.transpose(1, 2), x[..., 1:5], x[:1].expand(2, 3, 4, 8), None)
    assert all(after is before for before, after in zip(walked, contiguous_heads(*walked)))
    for copied in (x[..., ::2], x[:, :1].expand(2, 3, 4, 8), x[..., :1].expand(2, 3, 4, 8)):
        (after,) = contiguous_heads(copied)
        assert after.is_contiguous()
        assert torch.equal(after, copied)


def test_batches_may_be_expanded():
    angles = torch.zeros(3, 1, 4, 8).expand(3, 2, 4, 8)
    assert contiguous_heads(angles, batch_dims=2)[0] is angles
    assert contiguous_heads(angles)[0].is_contiguous()
    tokens = torch.zeros(3, 2, 1, 8).expand(3, 2, 4, 8)
    assert contiguous_heads(tokens, batch_dims=2)[0].is_contiguous()


def test_an_expanded_tensor_is_not_overwritten():
    require_overwritable(q=torch.zeros(2, 3, 4, 8).transpose(1, 2), k=None)
    with pytest.raises(ValueError, match=r"q must have .* written in place \(got strides \(0, 32, 8, 1\)\)"):
        require_overwritable(q=torch.zeros(1, 3, 4, 8).expand(2, 3, 4, 8))
