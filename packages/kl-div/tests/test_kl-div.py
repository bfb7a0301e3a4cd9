from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from npu_op_kl_div import KLDivLoss, kl_div, kl_div_reference
from npu_op_kl_div.spec import SPEC
from npu_op_lab.battery import OperatorBattery
from npu_op_lab.bench.memory import peak_of_loss
from npu_op_lab.execution import available_modes

EXECUTED = [mode for mode in available_modes() if mode.executes]
KERNELS = [mode for mode in EXECUTED if mode.kernels and mode.kind != "emulator"]
_BOTH = (
    "vocab-1000-float16",
    "vocab-1000-bfloat16",
    "vocab-1000-float32",
    "none-log",
    "mean-log",
    "target-zeros",
    "target-float32",
    "sliced",
)


class TestBattery(OperatorBattery):
    spec = SPEC


class TestBothGradients(OperatorBattery):
    """The same with a target that requires a gradient as well."""

    spec = replace(
        SPEC,
        cases=tuple(replace(case, name=f"both-{case.name}") for case in SPEC.cases if case.name in _BOTH),
        differentiable=("input", "target"),
    )


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("log_target", (False, True))
@pytest.mark.parametrize("reduction", ("none", "sum", "mean", "batchmean"))
def test_infinities_and_nan_are_those_of_torch(mode, reduction, log_target):
    inf, nan = float("inf"), float("nan")
    logs = torch.tensor([[-1.0, -inf, -inf, -2.0], [-3.0, -0.5, -104.0, nan]])
    target = torch.tensor([[0.0, 0.5, 0.0, 1.0], [-0.5, 0.25, 1e-30, 0.0]])
    for row in (slice(0, 1), slice(1, 2), slice(0, 1)):
        expected = kl_div_reference(logs[row], target[row], reduction, log_target)
        with mode.enter():
            actual = kl_div(logs[row].to(mode.device), target[row].to(mode.device), reduction, log_target).cpu()
        torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_a_second_backward_through_a_retained_graph_is_right(mode):
    logs = torch.randn(5, 70, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    target = logs.roll(1, 0).exp()
    x = logs.to(mode.device).requires_grad_()
    with mode.enter():
        loss = kl_div(x, target.to(mode.device))
        gradients = [torch.autograd.grad(loss * factor, x, retain_graph=True)[0].cpu() for factor in (1.0, 3.0, 1.0)]
    for gradient, factor in zip(gradients, (1.0, 3.0, 1.0)):
        torch.testing.assert_close(gradient, target * (-factor / 5))


@pytest.mark.parametrize("shape", ((7,), (2, 3, 5), (2, 3, 4, 5)))
@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_batchmean_divides_by_the_first_dimension(mode, shape):
    logs, target = torch.randn(shape).log_softmax(-1), torch.rand(shape)
    with mode.enter():
        actual = kl_div(logs.to(mode.device), target.to(mode.device)).cpu()
    torch.testing.assert_close(actual, torch.nn.functional.kl_div(logs, target, reduction="batchmean"))


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize("gradient", (False, True))
def test_memory_is_the_gradient_and_a_number_per_program(mode, gradient):
    logs = torch.randn(64, 2000, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    x = logs.to(mode.device).requires_grad_(gradient)
    y = logs.detach().exp().to(mode.device)
    assert peak_of_loss(kl_div, x, y, mode=mode) <= (3 if gradient else 2) * x.nbytes + 16 * 1024


@pytest.mark.filterwarnings("ignore:reduction")
def test_module_is_a_drop_in_for_torch():
    logs, log_target = torch.randn(3, 8).log_softmax(-1), torch.randn(3, 8).log_softmax(-1)
    for reduction in ("batchmean", "mean", "sum", "none"):
        for target, options in ((log_target.exp(), {}), (log_target, {"log_target": True})):
            ours, theirs = (module(reduction=reduction, **options)(logs, target) for module in (KLDivLoss, torch.nn.KLDivLoss))
            torch.testing.assert_close(ours, theirs)
    assert isinstance(KLDivLoss(), torch.nn.KLDivLoss)
    with pytest.raises(ValueError, match=r"reduction must be one of .* \(got 'avg'\)"):
        KLDivLoss(reduction="avg")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        ((torch.ones(2, 4), torch.ones(2, 5)), {}, ValueError, r"target must have shape \(2, 4\) \(got \(2, 5\)\)"),
        ((torch.ones(2, 4), torch.ones(2, 4), "avg"), {}, ValueError, r"reduction must be one of 'none', .* \(got 'avg'\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"log_target": 1}, TypeError, r"log_target must be a bool \(got int\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        kl_div(*arguments, **options)


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no KL divergence besides PyTorch's; use 'eager'"):
        kl_div(torch.ones(2, 4), torch.ones(2, 4), implementation="vendor")


def test_eager_is_the_reference():
    logs, target = torch.randn(4, 16).log_softmax(-1), torch.rand(4, 16)
    assert torch.equal(kl_div(logs, target, implementation="eager"), kl_div_reference(logs, target))


if torch.cuda.is_available():  # needs the memory of a GPU

    def test_more_elements_than_32_bits_count():
        rows, vocab = 17000, 128256
        logs = torch.full((rows, vocab), -2.0, dtype=torch.bfloat16, device="cuda").requires_grad_()
        target = torch.zeros((rows, vocab), dtype=torch.bfloat16, device="cuda")
        target[-1, -3:] = 0.5
        loss = kl_div(logs, target, "sum")
        (gradient,) = torch.autograd.grad(loss, logs)
        torch.testing.assert_close(loss.cpu(), torch.tensor(3 * 0.5 * (2.0 - 0.6931), dtype=torch.bfloat16))
        assert gradient[-1, -3:].eq(-0.5).all() and gradient.count_nonzero() == 3
