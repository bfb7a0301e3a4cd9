from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_op_runtime.device import Target
from npu_op_runtime.soc import SOCS
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer
from npu_op_runtime.vocabulary import MAX_ROWS, plan_vocabulary

NPU_TARGETS = [Target("npu", soc.vector_cores, soc.ub_bytes) for soc in SOCS.values()]
CUDA = Target("cuda", 132, 0)


@given(
    target=st.sampled_from(NPU_TARGETS), n_cols=st.integers(1, 300_000), itemsize=st.sampled_from((2, 4)),
    streams=st.integers(1, 2), work=st.integers(1, 12),
)  # fmt: skip
def test_tiles_fit_ub_double_buffered_and_cover_the_row_in_even_pieces(target, n_cols, itemsize, streams, work):
    plan = plan_vocabulary(target, n_cols, (*(Buffer(itemsize, streamed=True),) * streams, *(Buffer(4),) * work))
    assert plan.rows * plan.cols * (2 * itemsize * streams + 4 * work) <= target.ub_bytes
    assert 2 <= plan.rows <= MAX_ROWS
    assert plan.cols * itemsize % UB_BLOCK_BYTES == 0
    pieces = -(-n_cols // plan.cols)
    assert plan.resident == (pieces == 1)
    assert pieces * plan.cols - n_cols < pieces * UB_BLOCK_BYTES // itemsize


@given(n_cols=st.integers(1, 300_000))
def test_cuda_tiles_are_powers_of_two_with_enough_elements_for_each_thread(n_cols):
    plan = plan_vocabulary(CUDA, n_cols, (Buffer(4, streamed=True),))
    assert plan.cols & (plan.cols - 1) == 0 and plan.rows & (plan.rows - 1) == 0
    assert plan.resident == (plan.cols >= n_cols)
    assert plan.num_warps * 32 * 16 >= min(plan.rows * plan.cols, 4096)


def test_what_no_tile_fits_is_named():
    with pytest.raises(ValueError, match=r"n_cols must be at least 1 \(got 0\)"):
        plan_vocabulary(NPU_TARGETS[0], 0, (Buffer(4),))
    with pytest.raises(ValueError, match="no tile of 100 columns fits the UB of 4096 bytes"):
        plan_vocabulary(Target("npu", 40, 4096), 100, (Buffer(4),))
