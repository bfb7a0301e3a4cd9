from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from npu_op_runtime.autograd import once_differentiable, refuse_gradients, tracked


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 2 * x * dy


def test_first_order_works_and_a_graph_of_it_is_refused():
    x = torch.tensor([3.0], requires_grad=True)
    assert torch.autograd.grad(Square.apply(x).sum(), x)[0].item() == 6.0
    # The incoming gradient needs no gradient here: PyTorch's own decorator would not raise.
    with pytest.raises(NotImplementedError, match="create_graph=True"):
        torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)


def test_tracked_where_a_gradient_is_wanted():
    x, leaf = torch.ones(1), torch.ones(1, requires_grad=True)
    assert tracked(x, None, leaf)
    assert not tracked(x, None)
    with torch.no_grad():
        assert not tracked(leaf)


def test_a_tangent_is_refused():
    x = torch.ones(1)
    with forward_ad.dual_level():
        assert not tracked(x)
        with pytest.raises(NotImplementedError, match="forward-mode differentiation is not implemented"):
            tracked(forward_ad.make_dual(x, x))


def test_a_gradient_of_an_inference_operator_is_refused_by_name():
    x, weight = torch.ones(1), torch.ones(1, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"norm is for inference and weight requires a gradient: call it under torch.no_grad\(\)"):
        refuse_gradients("norm", x=x, bias=None, weight=weight)
    refuse_gradients("norm", x=x, bias=None)
    with torch.no_grad():
        refuse_gradients("norm", x=x, weight=weight)
