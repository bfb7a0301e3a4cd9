from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_op_runtime import rotary
from npu_op_runtime.device import Target
from npu_op_runtime.rotary import launch_rotation, plan_heads, require_overwritable

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


@pytest.fixture
def launched(monkeypatch):
    """The tensors that kernels are launched on."""
    found = []
    monkeypatch.setattr("npu_op_runtime.rotary.target_of", lambda tensor: _NPU)
    monkeypatch.setattr("npu_op_runtime.launch.load_kernels", lambda module, backend: SimpleNamespace(kernel=None))
    monkeypatch.setattr("npu_op_runtime.launch.launch", lambda kernel, programs, target, anchor, *args, **constants: found.append(args))
    return found


def _launch(q, k, *angles, **options):
    outputs = (torch.empty_like(q), None if k is None else torch.empty_like(k))
    options = {"heads_dim": 2, "interleaved": False, "inverse": False} | options
    launch_rotation("module", "kernel", (q, k, *outputs), angles, angles[0].shape[-1] // 2, **options)


def test_only_what_a_kernel_cannot_walk_is_copied(launched):
    x, angles = torch.zeros(2, 3, 4, 8), torch.zeros(3, 8)
    for walked in (x, x.transpose(1, 2).contiguous().transpose(1, 2), x[..., 1:5], x[:1].expand(2, 3, 4, 8)):
        _launch(walked, walked, angles)
        assert launched[-1][0] is walked and launched[-1][1] is walked and launched[-1][4] is angles
    for copied in (x[..., ::2], x[:, :1].expand(2, 3, 4, 8), x[..., :1].expand(2, 3, 4, 8)):
        _launch(x, copied, angles)
        assert launched[-1][0] is x
        assert launched[-1][1].is_contiguous() and torch.equal(launched[-1][1], copied)
    assert len(launched) == 7


def test_results_reach_what_a_kernel_cannot_walk(launched, monkeypatch):
    def write(kernel, programs, target, anchor, q, k, q_out, k_out, *rest, **constants):
        assert q_out.is_contiguous() and k_out.is_contiguous() and k_out is k  # in place stays in place
        q_out.fill_(1)
        k_out.fill_(2)

    monkeypatch.setattr("npu_op_runtime.launch.launch", write)
    q, k, q_out = torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4, 16)[..., ::2], torch.zeros(2, 3, 8, 4).mT
    launch_rotation("module", "kernel", (q, k, q_out, k), (torch.zeros(3, 8),), 4, heads_dim=2, interleaved=False, inverse=False)
    assert q.eq(0).all() and q_out.eq(1).all() and k.eq(2).all()


def test_an_expanded_result_is_refused(launched):
    q = torch.zeros(1, 3, 4, 8).expand(2, 3, 4, 8)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory location"):
        launch_rotation("module", "kernel", (q, None, q, None), (torch.zeros(3, 8),), 4, heads_dim=2, interleaved=False, inverse=False)


def test_no_heads_may_be_expanded(launched):
    for q, k in ((0, 4), (4, 0)):
        _launch(*(torch.zeros(2, 1, heads, 8).expand(2, 3, heads, 8) for heads in (q, k)), torch.zeros(3, 8))
    assert len(launched) == 2


def test_batches_of_angles_may_be_expanded(launched):
    x, angles = torch.zeros(2, 4, 5, 8), torch.zeros(3, 1, 4, 8).expand(3, 2, 4, 8)
    _launch(x, None, angles)
    assert launched[-1][4] is angles
    _launch(x, None, torch.zeros(2, 1, 8).expand(2, 4, 8))
    assert launched[-1][4].is_contiguous()


def test_kernels_get_the_strides_of_the_layout(launched):
    q, angles = torch.zeros(2, 5, 4, 8).transpose(1, 2), torch.zeros(3, 2, 4, 8)
    _launch(q, None, angles)
    numbers = launched[-1][5:]
    assert numbers == (2, 4, 160, 8, 32, 0, 0, 0, 160, 8, 32, 0, 0, 0, 32, 8, 64)


def test_dtypes_that_triton_compiles_for_are_told_apart(launched):
    x, angles = torch.zeros(2, 4, 7, 8), torch.zeros(4, 8)
    for k, cos in ((x, angles), (x.half(), angles), (x, angles.half())):
        kept = rotary._rotation.cache_info().misses
        _launch(x, k, cos)
        assert rotary._rotation.cache_info().misses == kept + 1


def test_an_expanded_tensor_is_not_overwritten():
    require_overwritable(q=torch.zeros(2, 3, 4, 8).transpose(1, 2), k=None)
    with pytest.raises(ValueError, match=r"q must have .* written in place \(got strides \(0, 32, 8, 1\)\)"):
        require_overwritable(q=torch.zeros(1, 3, 4, 8).expand(2, 3, 4, 8))
