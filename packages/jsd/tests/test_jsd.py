from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from npu_op_jsd import JSDLoss, jsd, jsd_reference
from npu_op_jsd.spec import SPEC
from npu_op_lab.battery import OperatorBattery
from npu_op_lab.bench.memory import peak_of_loss
from npu_op_lab.execution import available_modes

EXECUTED = [mode for mode in available_modes() if mode.executes]
KERNELS = [mode for mode in EXECUTED if mode.kernels and mode.kind != "emulator"]
BETAS = (0.0, 0.1, 0.5, 1.0)
_BOTH = (
    *("vocab-1000-float16", "vocab-1000-bfloat16", "vocab-1000-float32", "odd-vocab-labels-bfloat16", "sliced"),
    *("beta-0.0", "beta-0.1", "beta-1.0", "impossible-0.0", "impossible-0.5", "impossible-1.0"),
)


class TestBattery(OperatorBattery):
    spec = SPEC


class TestBothGradients(OperatorBattery):
    """The same with a teacher that requires a gradient as well."""

    spec = replace(
        SPEC,
        cases=tuple(replace(case, name=f"both-{case.name}") for case in SPEC.cases if case.name in _BOTH),
        differentiable=("log_q", "log_p"),
    )


def _log_distributions(*shape):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).log_softmax(-1) for _ in range(2)]


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("level", (-104.0, -float("inf")))
def test_what_neither_holds_possible_adds_nothing(mode, beta, level):
    log_q, log_p = (torch.full((4, 70), level, device=mode.device).requires_grad_() for _ in range(2))
    with mode.enter():
        loss = jsd(log_q, log_p, beta=beta)
        gradients = torch.autograd.grad(loss, (log_q, log_p))
    assert loss.item() == 0.0
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize(("beta", "expected"), ((0.0, float("inf")), (0.5, 0.6931472), (0.25, 0.5623351), (1.0, float("inf"))))
def test_distributions_without_anything_in_common_are_as_far_apart_as_can_be(mode, beta, expected):
    log_q, log_p = torch.full((1, 64), -float("inf")), torch.full((1, 64), -float("inf"))
    log_q[0, 3], log_p[0, 60] = 0.0, 0.0
    with mode.enter():
        loss = jsd(log_q.to(mode.device), log_p.to(mode.device), beta=beta).cpu()
    # H(beta) = -beta log(beta) - (1 - beta) log(1 - beta) for a mixture.
    torch.testing.assert_close(loss, torch.tensor(expected))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("beta", (0.0, 0.5, 1.0))
def test_equal_distributions_are_at_distance_0(mode, beta):
    log_q, _ = _log_distributions(5, 300)
    x = log_q.to(mode.device).requires_grad_()
    with mode.enter():
        loss = jsd(x, x.detach().clone(), beta=beta)
        (gradient,) = torch.autograd.grad(loss, x)
    assert loss.item() == 0.0
    # KL(P || Q) is a sum over log Q without a constraint: its slope is -P.
    torch.testing.assert_close(gradient.cpu(), {0.0: -1, 0.5: 0, 1.0: 1}[beta] * log_q.exp() / 5)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_the_ends_are_the_kl_divergences_of_torch(mode):
    log_q, log_p = _log_distributions(5, 70)
    with mode.enter():
        forward, reverse = (jsd(log_q.to(mode.device), log_p.to(mode.device), beta=beta).cpu() for beta in (0, 1))
    kl = torch.nn.functional.kl_div
    torch.testing.assert_close(forward, kl(log_q, log_p, reduction="batchmean", log_target=True))
    torch.testing.assert_close(reverse, kl(log_p, log_q, reduction="batchmean", log_target=True))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("beta", BETAS)
def test_rows_that_are_ignored_do_not_count_whatever_they_hold(mode, beta):
    log_q, log_p = _log_distributions(5, 70)
    log_q[1], log_p[3] = float("nan"), float("inf")
    labels = torch.tensor([4, -1, 0, -1, 7])
    kept = labels != -1
    x, y = (log.to(mode.device).requires_grad_() for log in (log_q, log_p))
    with mode.enter():
        loss = jsd(x, y, beta=beta, shift_labels=labels.to(mode.device), ignore_index=-1)
        gradients = torch.autograd.grad(loss, (x, y))
    leaves = [log[kept].requires_grad_() for log in (log_q, log_p)]
    expected = jsd_reference(*leaves, beta=beta)
    torch.testing.assert_close(loss.detach().cpu(), expected.detach())
    for gradient, right in zip(gradients, torch.autograd.grad(expected, leaves)):
        assert not gradient.cpu()[~kept].any()
        torch.testing.assert_close(gradient.cpu()[kept], right)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_backward_multiplies_by_any_incoming_gradient_and_again_through_a_retained_graph(mode):
    log_q, log_p = _log_distributions(5, 70)
    leaf = log_q.clone().requires_grad_()
    (slope,) = torch.autograd.grad(jsd_reference(leaf, log_p), leaf)
    x = log_q.to(mode.device).requires_grad_()
    with mode.enter():
        loss = jsd(x, log_p.to(mode.device))
        retained = [torch.autograd.grad(loss * factor, x, retain_graph=True)[0].cpu() for factor in (1.0, 3.0, 0.0, 1.0)]
        last = [torch.autograd.grad(jsd(x, log_p.to(mode.device)) * factor, x)[0].cpu() for factor in (1.0, -2.0)]
    for gradient, factor in zip((*retained, *last), (1.0, 3.0, 0.0, 1.0, 1.0, -2.0)):
        torch.testing.assert_close(gradient, slope * factor)


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize("gradient", (False, True))
def test_memory_is_the_gradient_and_a_number_per_program(mode, gradient):
    log_q, log_p = _log_distributions(64, 2000)
    x = log_q.to(mode.device).requires_grad_(gradient)
    y = log_p.to(mode.device)
    assert peak_of_loss(jsd, x, y, mode=mode) <= (3 if gradient else 2) * x.nbytes + 16 * 1024


@pytest.mark.parametrize("mode", [mode for mode in EXECUTED if mode.kernels], ids=lambda mode: mode.name)
def test_nan_is_nan_in_the_loss_and_in_both_gradients_of_its_element(mode):
    logs = _log_distributions(2, 70)
    logs[0][0, 3], logs[1][1, 5] = float("nan"), float("nan")
    wrong = logs[0].isnan() | logs[1].isnan()
    leaves = [log.to(mode.device).requires_grad_() for log in logs]
    with mode.enter():
        loss = jsd(*leaves)
        gradients = torch.autograd.grad(loss, leaves)
    assert loss.isnan()
    assert all(torch.equal(gradient.isnan().cpu(), wrong) for gradient in gradients)


def test_module_is_the_function():
    log_q, log_p = _log_distributions(3, 8)
    labels = torch.tensor([1, 0, 2])
    for beta in BETAS:
        assert torch.equal(
            JSDLoss(beta, ignore_index=0)(log_q, log_p, labels), jsd(log_q, log_p, beta=beta, shift_labels=labels, ignore_index=0)
        )
    with pytest.raises(ValueError, match=r"beta must be between 0 and 1 \(got 2\)"):
        JSDLoss(2)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        ((torch.ones(2, 4), torch.ones(2, 5)), {}, ValueError, r"log_p must have shape \(2, 4\) \(got \(2, 5\)\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"beta": "0.5"}, TypeError, r"beta must be a number \(got '0.5'\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"beta": None}, TypeError, r"beta must be a number \(got None\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"beta": -0.1}, ValueError, r"beta must be between 0 and 1 \(got -0.1\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"beta": float("nan")}, ValueError, r"beta must be between 0 and 1 \(got nan\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"ignore_index": 0.5}, TypeError, r"ignore_index must be an int \(got float\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        jsd(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no Jensen-Shannon divergence; use 'eager'"):
        jsd(torch.ones(2, 4), torch.ones(2, 4), implementation="vendor")


def test_eager_is_the_reference():
    log_q, log_p = _log_distributions(4, 16)
    assert torch.equal(jsd(log_q, log_p, implementation="eager"), jsd_reference(log_q, log_p))


if torch.cuda.is_available():  # needs the memory of a GPU

    def test_more_elements_than_32_bits_count():
        rows, vocab = 17000, 128256
        labels = torch.zeros(rows, dtype=torch.int64, device="cuda")
        labels[0] = -100
        for shift_labels in (None, labels):
            log_q = torch.full((rows, vocab), -300.0, dtype=torch.bfloat16, device="cuda")
            log_p = log_q.clone()
            for row in (0, rows - 1):
                log_q[row, -1], log_p[row, -2] = 0.0, 0.0
            log_q.requires_grad_()
            loss = jsd(log_q, log_p, shift_labels=shift_labels)
            (gradient,) = torch.autograd.grad(loss * rows, log_q)
            kept = rows - 1 if shift_labels is not None else rows
            expected = 0.6931 * (1 if shift_labels is not None else 2) / kept
            torch.testing.assert_close(loss.float().cpu(), torch.tensor(expected), rtol=0.01, atol=0)
            torch.testing.assert_close(gradient[-1, -1].float().cpu(), torch.tensor(0.5 * 0.6931), rtol=0.01, atol=0)
            assert gradient.count_nonzero() == (1 if shift_labels is not None else 2)
