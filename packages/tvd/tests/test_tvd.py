from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.bench.memory import peak_of_loss
from npu_op_lab.execution import available_modes
from npu_op_tvd import TVDLoss, tvd, tvd_reference
from npu_op_tvd.spec import SPEC

EXECUTED = [mode for mode in available_modes() if mode.executes]
KERNELS = [mode for mode in EXECUTED if mode.kernels and mode.kind != "emulator"]
_BOTH = ("vocab-1000-float16", "vocab-1000-bfloat16", "vocab-1000-float32", "odd-vocab-labels-bfloat16", "none-labels", "mean", "sliced")


class TestBattery(OperatorBattery):
    spec = SPEC


class TestBothGradients(OperatorBattery):
    """The same with a q that requires a gradient as well."""

    spec = replace(
        SPEC,
        cases=tuple(replace(case, name=f"both-{case.name}") for case in SPEC.cases if case.name in _BOTH),
        differentiable=("p", "q"),
    )


def _distributions(*shape):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(*shape, generator=generator).softmax(-1) for _ in range(2))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("reduction", ("none", "sum", "mean", "batchmean"))
def test_the_gradient_is_0_where_both_are_equal(mode, reduction):
    p, q = _distributions(2, 8)
    q[:, ::2] = p[:, ::2]
    x = p.to(mode.device).requires_grad_()
    with mode.enter():
        loss = tvd(x, q.to(mode.device), reduction)
        (gradient,) = torch.autograd.grad(loss, x, torch.full_like(loss, -3.0))
    assert not gradient[:, ::2].any()
    assert gradient[:, 1::2].all()


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("reduction", ("none", "sum", "mean", "batchmean"))
def test_rows_that_are_ignored_do_not_count_whatever_they_hold(mode, reduction):
    p, q = _distributions(5, 70)
    p[1], q[3] = float("nan"), float("inf")
    labels = torch.tensor([4, -1, 0, -1, 7])
    kept = labels != -1
    x = p.to(mode.device).requires_grad_()
    with mode.enter():
        loss = tvd(x, q.to(mode.device), reduction, shift_labels=labels.to(mode.device), ignore_index=-1)
        (gradient,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    y = p[kept].requires_grad_()
    expected = tvd_reference(y, q[kept], reduction)
    (expected_gradient,) = torch.autograd.grad(expected, y, torch.ones_like(expected))
    assert not gradient.cpu()[~kept].any()
    torch.testing.assert_close(gradient.cpu()[kept], expected_gradient)
    torch.testing.assert_close(loss.detach().cpu()[kept] if reduction == "none" else loss.detach().cpu(), expected.detach())


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32))
def test_labels_of_any_rank_follow_the_rows(mode, dtype):
    p, q = (tensor.transpose(0, 1) for tensor in _distributions(4, 3, 40))
    labels = torch.tensor([[1, -100, 2, -100], [-100, 1, 1, 1], [5, 5, -100, 0]], dtype=dtype)
    with mode.enter():
        actual = tvd(p.to(mode.device), q.to(mode.device), shift_labels=labels.to(mode.device)).cpu()
    torch.testing.assert_close(actual, tvd_reference(p, q, shift_labels=labels))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_more_labels_than_a_tile_are_counted(mode):
    rows = 4096 * 2 + 5
    p, q = torch.zeros(rows, 2), torch.ones(rows, 2)
    labels = torch.arange(rows) - 100
    labels[-3:] = -100
    with mode.enter():
        loss = tvd(p.to(mode.device), q.to(mode.device), "mean", shift_labels=labels.to(mode.device)).cpu()
    torch.testing.assert_close(loss, torch.tensor(0.5))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_backward_multiplies_by_any_incoming_gradient_and_again_through_a_retained_graph(mode):
    p, q = _distributions(5, 70)
    slope = torch.sign(p - q) / 10
    x = p.to(mode.device).requires_grad_()
    with mode.enter():
        loss = tvd(x, q.to(mode.device))
        retained = [torch.autograd.grad(loss * factor, x, retain_graph=True)[0].cpu() for factor in (1.0, 3.0, 0.0, 1.0)]
        last = [torch.autograd.grad(tvd(x, q.to(mode.device)) * factor, x)[0].cpu() for factor in (1.0, -2.0)]
    for gradient, factor in zip((*retained, *last), (1.0, 3.0, 0.0, 1.0, 1.0, -2.0)):
        torch.testing.assert_close(gradient, slope * factor)


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize("gradient", (False, True))
def test_memory_is_the_gradient_and_a_number_per_program(mode, gradient):
    p, q = _distributions(64, 2000)
    x = p.to(mode.device).requires_grad_(gradient)
    y = q.to(mode.device)
    assert peak_of_loss(tvd, x, y, mode=mode) <= (3 if gradient else 2) * x.nbytes + 16 * 1024


def test_module_is_the_function():
    p, q = _distributions(3, 8)
    labels = torch.tensor([1, 0, 2])
    for reduction in ("batchmean", "mean", "sum", "none"):
        loss = TVDLoss(reduction, ignore_index=0)(p, q, labels)
        assert torch.equal(loss, tvd(p, q, reduction, shift_labels=labels, ignore_index=0))
    with pytest.raises(ValueError, match=r"reduction must be one of .* \(got 'avg'\)"):
        TVDLoss("avg")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        ((torch.ones(2, 4), torch.ones(2, 5)), {}, ValueError, r"q must have shape \(2, 4\) \(got \(2, 5\)\)"),
        ((torch.ones(2, 4), torch.ones(2, 4), "avg"), {}, ValueError, r"reduction must be one of 'none', .* \(got 'avg'\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"ignore_index": None}, TypeError, r"ignore_index must be an int \(got NoneType\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        tvd(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no total variation distance; use 'eager'"):
        tvd(torch.ones(2, 4), torch.ones(2, 4), implementation="vendor")


def test_eager_is_the_reference():
    p, q = _distributions(4, 16)
    assert torch.equal(tvd(p, q, implementation="eager"), tvd_reference(p, q))


if torch.cuda.is_available():  # needs the memory of a GPU

    def test_more_elements_than_32_bits_count():
        rows, vocab = 17000, 128256
        labels = torch.zeros(rows, dtype=torch.int64, device="cuda")
        labels[0] = -100
        for shift_labels in (None, labels):
            p = torch.zeros((rows, vocab), dtype=torch.bfloat16, device="cuda").requires_grad_()
            q = torch.zeros((rows, vocab), dtype=torch.bfloat16, device="cuda")
            q[0, :5] = 1.0
            q[-1, -3:] = 0.5
            loss = tvd(p, q, "sum", shift_labels=shift_labels)
            (gradient,) = torch.autograd.grad(loss, p)
            assert loss.item() == (0.75 if shift_labels is not None else 3.25)
            assert gradient[-1, -3:].eq(-0.5).all()
            assert gradient.count_nonzero() == (3 if shift_labels is not None else 8)
