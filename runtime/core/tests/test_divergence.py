from __future__ import annotations

import pytest
import torch

from npu_op_runtime.divergence import require_distributions, require_labels
from npu_op_runtime.loss_gradient import times_incoming

_P = torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    (
        ({"p": [1.0], "q": _P}, TypeError, r"p must be a torch.Tensor \(got list\)"),
        ({"p": _P, "q": _P.long()}, TypeError, r"q must have dtype float16 or bfloat16 or float32 \(got int64\)"),
        ({"p": torch.tensor(1.0), "q": torch.tensor(1.0)}, ValueError, r"p must have at least one dimension \(got a scalar\)"),
        ({"p": _P, "q": _P[0]}, ValueError, r"q must have shape \(2, 3, 4\) \(got \(3, 4\)\)"),
        ({"p": _P, "q": _P.to("meta")}, ValueError, r"q must be on cpu like p \(got meta\)"),
    ),
)
def test_wrong_distributions_are_named(tensors, error, message):
    with pytest.raises(error, match=message):
        require_distributions(**tensors)


@pytest.mark.parametrize(
    ("labels", "ignore_index", "error", "message"),
    (
        (None, 1.0, TypeError, r"ignore_index must be an int \(got float\)"),
        (None, True, TypeError, r"ignore_index must be an int \(got bool\)"),
        (None, 2**31, ValueError, r"ignore_index must fit 32 bits \(got 2147483648\)"),
        ([1], -100, TypeError, r"shift_labels must be a torch.Tensor \(got list\)"),
        (torch.ones(2, 3), -100, TypeError, r"shift_labels must have dtype int64 or int32 \(got float32\)"),
        (torch.ones(6, dtype=torch.int64), -100, ValueError, r"shift_labels must have shape \(2, 3\) \(got \(6,\)\)"),
        (torch.ones(2, 3, dtype=torch.int64, device="meta"), -100, ValueError, r"shift_labels must be on cpu .* \(got meta\)"),
    ),
)
def test_wrong_labels_are_named(labels, ignore_index, error, message):
    with pytest.raises(error, match=message):
        require_labels(labels, ignore_index, _P)


class _SavesItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, saved):
        ctx.saved = saved
        return x.sum()

    @staticmethod
    def backward(ctx, dloss):
        with torch.no_grad():
            return times_incoming([ctx.saved, None], dloss)[0], None


def test_the_saved_gradient_is_overwritten_only_where_nobody_can_ask_for_it_again():
    x, saved = torch.ones(3, requires_grad=True), torch.arange(3.0)
    loss = _SavesItsGradient.apply(x, saved)
    for factor in (3.0, 1.0):
        (gradient,) = torch.autograd.grad(loss * factor, x, retain_graph=True)
        assert torch.equal(gradient, torch.arange(3.0) * factor)
        assert torch.equal(saved, torch.arange(3.0))
    (gradient,) = torch.autograd.grad(loss * 2, x)
    assert gradient.data_ptr() == saved.data_ptr()
    assert torch.equal(saved, torch.tensor([0.0, 2.0, 4.0]))
