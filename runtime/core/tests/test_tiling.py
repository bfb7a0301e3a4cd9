from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_op_runtime.device import Target
from npu_op_runtime.soc import SOCS
from npu_op_runtime.tiling import MAX_GRID, UB_BLOCK_BYTES, Buffer, plan_blocks, plan_columns, plan_flat, plan_rows, plan_tall, programs

NPU_TARGETS = [Target("npu", soc.vector_cores, soc.ub_bytes) for soc in SOCS.values()]
targets = st.sampled_from(NPU_TARGETS)
itemsizes = st.sampled_from((2, 4))
widths = st.integers(1, 300_000)


def stream(itemsize, count):
    return (Buffer(itemsize, streamed=True),) * count


def used(rows, cols, buffers):
    sizes = {"tile": rows * cols, "columns": cols, "rows": rows}
    return sum(sizes[buffer.extent] * buffer.itemsize * (2 if buffer.streamed else 1) for buffer in buffers)


row_buffers = st.builds(
    lambda itemsize, streams, work, weights: (*stream(itemsize, streams), *(Buffer(4),) * work, *(Buffer(4, "columns"),) * weights),
    itemsizes, st.integers(1, 5), st.integers(0, 4), st.integers(0, 3),
)  # fmt: skip


@given(target=targets, n_cols=widths, resident=row_buffers, tiled=row_buffers)
def test_row_plans_fit_ub_double_buffered_in_whole_blocks(target, n_cols, resident, tiled):
    plan = plan_rows(target, n_cols, resident, tiled)
    width = plan.fold * plan.cols
    assert used(plan.rows, width, resident if plan.resident else tiled) <= target.ub_bytes
    itemsize = min(buffer.itemsize for buffer in resident)
    assert plan.cols * itemsize % UB_BLOCK_BYTES == 0
    if plan.resident:
        assert width >= n_cols
        assert width - n_cols < UB_BLOCK_BYTES // itemsize
    # A one-row tile reduces to a scalar; folding is what makes it a vector again.
    assert plan.rows >= 2 or plan.fold >= 2


@given(target=targets, n_cols=widths, buffers=row_buffers)
def test_tall_plans_fit_ub_in_whole_lines_and_their_rows_l2(target, n_cols, buffers):
    plan = plan_tall(target, n_cols, buffers)
    assert used(plan.rows, plan.cols, buffers) <= target.ub_bytes
    assert plan.rows >= 2
    assert plan.cols * min(buffer.itemsize for buffer in buffers) % 512 == 0
    streamed = sum(buffer.itemsize for buffer in buffers if buffer.streamed)
    assert plan.rows == 2 or plan.rows * n_cols * streamed <= 1 << 20


@pytest.mark.parametrize("n_cols", (16384, 65536, 131072))
def test_column_tiles_divide_the_row_into_whole_lines_where_they_can(n_cols):
    plan = plan_rows(NPU_TARGETS[0], n_cols, (*stream(2, 2), Buffer(4)), (*stream(2, 2), Buffer(4), Buffer(4)))
    assert n_cols % plan.cols == 0
    assert plan.cols * 2 % 512 == 0


@given(target=targets, n_cols=widths, itemsize=itemsizes)
def test_block_plans_cover_the_row_with_even_pieces(target, n_cols, itemsize):
    buffers = (*stream(itemsize, 3), Buffer(4), Buffer(4))
    plan = plan_blocks(target, n_cols, buffers)
    pieces = plan.tiles(1, 1, n_cols)
    assert used(plan.rows, plan.cols, buffers) <= target.ub_bytes
    assert plan.cols * itemsize % UB_BLOCK_BYTES == 0
    assert pieces * plan.cols >= n_cols > (pieces - 1) * plan.cols


@given(target=targets, n_cols=st.integers(1, 200_000), itemsize=itemsizes)
def test_column_plans_have_two_rows_and_cover_any_width(target, n_cols, itemsize):
    buffers = (*stream(itemsize, 2), *(Buffer(4),) * 5)
    plan = plan_columns(target, n_cols, buffers)
    assert plan.rows >= 2
    assert plan.fold == 1
    assert used(plan.rows, plan.cols, buffers) <= target.ub_bytes
    pieces = plan.tiles(1, 1, n_cols)
    assert pieces * plan.cols >= n_cols > (pieces - 1) * plan.cols


@given(target=targets, itemsize=itemsizes, streams=st.integers(1, 6), work=st.integers(0, 6))
def test_flat_plans_fit_ub_double_buffered(target, itemsize, streams, work):
    buffers = (*stream(itemsize, streams), *(Buffer(4),) * work)
    plan = plan_flat(target, buffers)
    assert used(1, plan.block, buffers) <= target.ub_bytes
    # The tile is as large as UB or the cap allows: one step more would not fit.
    assert plan.block + 128 > 16384 or used(1, plan.block + 128, buffers) > target.ub_bytes - 512
    # Neighbouring fp32 buffers start half a bank period apart.
    assert plan.block * 4 % 512 == 256


@given(target=targets, tiles=st.integers(0, 10**7), persistent=st.booleans())
def test_grids_stay_launchable_and_within_the_cores(target, tiles, persistent):
    grid = programs(target, tiles, persistent=persistent)
    assert 0 <= grid <= min(MAX_GRID, target.cores)
    assert (grid == 0) == (tiles == 0)


@pytest.mark.parametrize("n_cols", (3584, 5120, 7168))
def test_widths_that_are_no_power_of_two_are_not_padded(n_cols):
    plan = plan_rows(NPU_TARGETS[0], n_cols, (*stream(2, 2), Buffer(4)), (*stream(2, 2), Buffer(4)))
    assert plan.resident
    assert plan.fold * plan.cols == n_cols


@pytest.mark.parametrize(("n_cols", "fold"), [(7168, 16), (7296, 8), (7232, 4), (7200, 2)])
def test_a_row_alone_lies_in_as_many_whole_pieces_as_it_can(n_cols, fold):
    plan = plan_rows(NPU_TARGETS[0], n_cols, (*stream(2, 2), *(Buffer(4),) * 3), stream(2, 2))
    assert (plan.rows, plan.fold, plan.cols) == (1, fold, n_cols // fold)


def test_room_is_preferred_where_two_rows_fit():
    tight, roomy = (*stream(2, 2), Buffer(4)), (*stream(2, 2), Buffer(4), Buffer(4), Buffer(4))
    target = NPU_TARGETS[0]
    at_4096 = [plan_rows(target, 4096, tight, tight), plan_rows(target, 4096, tight, tight, roomy=roomy)]
    assert [plan.rows for plan in at_4096] == [3, 2]
    # Wider rows than fit twice with room take what fits.
    assert plan_rows(target, 6000, tight, tight, roomy=roomy) == plan_rows(target, 6000, tight, tight)


def test_tiles_are_counted_per_block():
    plan = plan_rows(NPU_TARGETS[0], 4096, (*stream(2, 2), Buffer(4)), (*stream(2, 2), Buffer(4)))
    assert plan.rows >= 2
    assert plan.row_tiles(3, plan.rows + 1) == 6


def test_cuda_takes_powers_of_two():
    target = Target("cuda", 132, 0)
    for n_cols in (1, 123, 4096, 5120, 16384, 50_000):
        plan = plan_rows(target, n_cols, (Buffer(2),), (Buffer(2),))
        assert plan.cols & (plan.cols - 1) == 0
        assert plan.rows & (plan.rows - 1) == 0
        assert plan.resident == (n_cols <= 16384)
        tall = plan_tall(target, n_cols, (Buffer(2),))
        assert tall.rows & (tall.rows - 1) == tall.cols & (tall.cols - 1) == 0
    assert programs(target, 10**6, persistent=False) == 10**6
    assert programs(target, 10**6, persistent=True) == 264


def test_width_below_one_is_refused():
    with pytest.raises(ValueError, match=r"n_cols must be at least 1 \(got 0\)"):
        plan_rows(NPU_TARGETS[0], 0, (Buffer(2),), (Buffer(2),))
    with pytest.raises(ValueError, match=r"n_cols must be at least 1 \(got 0\)"):
        plan_columns(NPU_TARGETS[0], 0, (Buffer(2),))
    with pytest.raises(ValueError, match=r"n_cols must be at least 1 \(got 0\)"):
        plan_tall(NPU_TARGETS[0], 0, stream(2, 1))


def test_a_row_that_cannot_be_tiled_is_refused():
    with pytest.raises(ValueError, match="no tile of 4096 columns fits the UB of 64 bytes"):
        plan_rows(Target("npu", 40, 64), 4096, (Buffer(4),), (Buffer(4),))
    with pytest.raises(ValueError, match="no tile of 256 columns fits the UB of 64 bytes"):
        plan_tall(Target("npu", 40, 64), 4096, stream(4, 1))
