from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_op_runtime.rows import rows_of


def gather(rows, index):
    """The rows in kernel order, read through the strides as a kernel would."""
    tensor = rows.tensors[index]
    flat = torch.as_strided(tensor, (rows.outer, rows.middle, rows.inner, tensor.shape[-1]), (*rows.strides[index], 1))
    return flat.reshape(rows.blocks * rows.inner, -1)


def test_contiguous_is_one_block():
    x = torch.randn(3, 5, 8)
    rows = rows_of((x,), (torch.empty_like(x),))
    assert (rows.blocks, rows.inner, rows.dense) == (1, 15, True)
    assert rows.strides == ((0, 0, 8), (0, 0, 8))
    assert rows.tensors[0] is x


def test_transposed_heads_collapse_without_a_copy():
    x = torch.randn(2, 6, 4, 8).transpose(1, 2)
    y = torch.empty_like(x)
    rows = rows_of((x,), (y,))
    assert (rows.blocks, rows.inner, rows.dense) == (1, 48, True)
    assert rows.tensors[0].data_ptr() == x.data_ptr()
    assert torch.equal(gather(rows, 0), x.transpose(1, 2).reshape(48, 8))


def test_slice_of_a_wider_row_keeps_its_stride():
    x = torch.randn(7, 40)[:, 3:19]
    rows = rows_of((x,), (torch.empty(7, 16),))
    assert (rows.blocks, rows.inner, rows.dense) == (1, 7, False)
    assert rows.strides == ((0, 0, 40), (0, 0, 16))
    assert rows.tensors[0].data_ptr() == x.data_ptr()


def test_two_levels_need_no_copy():
    x = torch.randn(4, 9, 20)[:, 2:7]
    rows = rows_of((x,), (torch.empty(4, 5, 20),))
    assert (rows.outer, rows.middle, rows.inner) == (1, 4, 5)
    assert rows.strides == ((0, 180, 20), (0, 100, 20))


def test_a_value_per_row_walks_along():
    x = torch.randn(2, 6, 4, 8).transpose(1, 2)
    rstd = torch.empty_like(x[..., 0])
    rows = rows_of((x,), (rstd.unsqueeze(-1),))
    assert rows.dense
    assert rows.strides[1] == (0, 0, 1)


def test_last_dimension_not_contiguous_is_copied():
    x = torch.randn(8, 6).t()
    rows = rows_of((x,), (torch.empty(6, 8),))
    assert rows.tensors[0].stride(-1) == 1
    assert torch.equal(gather(rows, 0), x)


def test_a_contiguous_gradient_beside_transposed_heads_needs_no_copy():
    x, dy = torch.randn(2, 6, 4, 8).transpose(1, 2), torch.randn(2, 4, 6, 8)
    rows = rows_of((x, dy), (torch.empty_like(x),))
    assert (rows.outer, rows.middle, rows.inner) == (2, 6, 4)
    assert [tensor.data_ptr() for tensor in rows.tensors[:2]] == [x.data_ptr(), dy.data_ptr()]
    assert torch.equal(gather(rows, 1), dy.transpose(1, 2).reshape(48, 8))


def test_four_strides_are_copied_with_a_warning_and_written_back():
    x = torch.randn(2, 3, 5, 7, 8)[:, :2, 1:4, 2:6]
    y = torch.zeros(2, 3, 5, 7, 8)[:, :2, 1:4, 2:6]
    with pytest.warns(UserWarning, match=r"need 4 strides, kernels take 3"):
        rows = rows_of((x,), (y,))
    gather(rows, 1).copy_(gather(rows, 0))
    rows.write_back()
    assert torch.equal(x, y)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    permutation=st.randoms(use_true_random=False),
    cuts=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    width=st.integers(1, 5),
)
def test_every_layout_visits_the_same_rows_in_the_same_order(sizes, permutation, cuts, width):
    order = list(range(len(sizes)))
    permutation.shuffle(order)
    storage = torch.arange(torch.Size([s + c for s, c in zip(sizes, cuts)] + [width]).numel(), dtype=torch.float32)
    x = storage.view([s + c for s, c in zip(sizes, cuts)] + [width])[tuple(slice(c, None) for c in cuts[: len(sizes)])]
    x = x.permute(*order, -1)
    y = torch.full_like(x, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = rows_of((x,), (y,))
    assert rows.blocks * rows.inner == x[..., 0].numel()
    gather(rows, 1).copy_(gather(rows, 0))
    rows.write_back()
    assert torch.equal(x, y)
