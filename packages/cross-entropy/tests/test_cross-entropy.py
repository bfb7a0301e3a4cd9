from __future__ import annotations

import itertools
import math

import pytest
import torch

from npu_op_cross_entropy import CrossEntropyLoss, CrossEntropyOutput, cross_entropy, cross_entropy_reference, op
from npu_op_cross_entropy.spec import SPEC
from npu_op_lab.battery import OperatorBattery
from npu_op_lab.bench.memory import PeakMemory
from npu_op_lab.execution import available_modes
from npu_op_lab.passes import evaluate
from npu_op_runtime.spec import Case
from npu_op_runtime.tiling import RowPlan

EXECUTED = [mode for mode in available_modes() if mode.executes and mode.kind != "emulator"]
KERNELS = [mode for mode in EXECUTED if mode.kernels]
COMPILED = [mode for mode in available_modes() if mode.name == "offline-Ascend910B4"]
EMULATED = [mode for mode in available_modes() if mode.name == "emulator-Ascend910B4"]

OPTIONS = {
    "weight": True,
    "ignore_index": 3,
    "label_smoothing": 0.1,
    "lse_square_scale": 1e-2,
    "softcap": 5.0,
    "return_z_loss": True,
    "return_token_accuracy": True,
    "return_predicted_tokens": True,
    "inplace": True,
}
REDUCTIONS = ("none", "mean", "sum")
# Every two of the options, with the reductions in turn: every option meets each of them, too.
PAIRS = [(a, b, REDUCTIONS[(i + j) % 3]) for (i, a), (j, b) in itertools.combinations(enumerate(OPTIONS), 2)]
# Those that meet inside the kernels, which are compiled for each.
_INNER = {"weight", "label_smoothing", "lse_square_scale", "softcap"}
COMPILED_PAIRS = [pair for pair in PAIRS if _INNER.issuperset(pair[:2])]


class TestBattery(OperatorBattery):
    spec = SPEC


@pytest.fixture
def small_tiles(monkeypatch):
    """Rows of 37 columns in three tiles, the last one with a tail."""
    for name in ("_forward_plan", "_backward_plan"):
        monkeypatch.setattr(op, name, lambda *_: RowPlan(2, 1, 16, resident=False, num_warps=1))


def require_pair(pair, mode):
    first, second, reduction = pair
    options = {name: OPTIONS[name] for name in (first, second)}
    layout = "weighted" if options.pop("weight", False) else "contiguous"
    tags = frozenset({"values", "inplace"} if "inplace" in options else {"values"})
    case = Case("-".join(pair), {"T": 5, "V": 37}, "float32", {**options, "reduction": reduction}, layout, tags)
    failed = [str(verdict) for verdict in evaluate(SPEC, case, mode=mode) if not verdict.passed]
    assert not failed, "\n".join(failed)


def test_every_option_meets_every_other_and_every_reduction():
    for name in OPTIONS:
        met = [pair for pair in PAIRS if name in pair]
        assert set(OPTIONS).union(REDUCTIONS) == set(itertools.chain(*met))


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_two_options_together(pair, mode, small_tiles):
    require_pair(pair, mode)


@pytest.mark.parametrize("mode", EMULATED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("pair", COMPILED_PAIRS, ids="-".join)
def test_every_two_options_together_compiled(pair, mode, small_tiles):
    require_pair(pair, mode)


def extremes():
    """Rows whose maximum is far above the first columns, or that hold infinities and NaN; the last one is like any other."""
    x = torch.randn(8, 2000, generator=torch.Generator().manual_seed(0))
    x[0, 1500] = 300.0
    x[1, :700] = -math.inf
    x[2, 1900:] = 1e30
    x[3, :700] = -3e38
    x[4, 1999] = math.nan
    x[5, 7] = math.inf
    x[6] = -math.inf
    return x, torch.tensor([1500, 900, 3, 1999, 0, 1, 2, 1234])


@pytest.mark.parametrize("mode", [*EXECUTED, *EMULATED], ids=lambda mode: mode.name)
def test_rows_far_out_of_range_are_those_of_torch(mode):
    x, target = extremes()
    x, target = x.to(mode.device).requires_grad_(), target.to(mode.device)
    with mode.enter():
        loss = cross_entropy(x, target, reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), x)
    wanted = torch.nn.functional.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(loss, wanted, equal_nan=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), x)[0], equal_nan=True)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("options", ({}, {"label_smoothing": 0.1, "lse_square_scale": 0.1, "return_token_accuracy": True}), ids=len)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_a_kept_row_loss_and_gradient_are_zero(mode, reduction, options):
    x = torch.randn(6, 100, device=mode.device, requires_grad=True)
    target = torch.full((6,), -100, device=mode.device)
    weight = torch.ones(100, device=mode.device) if options else None
    with mode.enter():
        loss = cross_entropy(x, target, weight, reduction=reduction, **options)
        loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        (gradient,) = torch.autograd.grad(loss.sum(), x)
    assert not loss.any() and not gradient.any()


@pytest.mark.parametrize("mode", [*KERNELS, *EMULATED], ids=lambda mode: mode.name)
def test_an_invalid_target_makes_its_row_nan_and_no_other(mode):
    x = torch.randn(5, 100, device=mode.device, requires_grad=True)
    target = torch.tensor([0, 100, -1, 2**32 + 5, 99], device=mode.device)
    with mode.enter():
        loss = cross_entropy(x, target, torch.ones(100, device=mode.device), reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        mean = cross_entropy(x.detach(), target)
    invalid = torch.tensor([False, True, True, True, False], device=mode.device)
    assert torch.equal(loss.isnan(), invalid) and mean.isnan()
    assert torch.equal(gradient.isnan(), invalid[:, None].expand_as(gradient))
    kept = torch.nn.functional.cross_entropy(x[~invalid], target[~invalid], reduction="none")
    torch.testing.assert_close(loss[~invalid], kept)


@pytest.mark.parametrize("mode", COMPILED, ids=lambda mode: mode.name)
@pytest.mark.parametrize("debug", (False, True))
def test_debug_mode_asserts_on_the_device_that_targets_are_valid(mode, debug, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_DUMP_DIR", str(tmp_path))
    monkeypatch.setattr(op, "DEBUG", debug)
    with mode.enter() as launches:
        cross_entropy(torch.randn(3, 100), torch.tensor([0, -100, 99]))
    assert ("target must lie in [0, V)" in launches[0].kernel.ir) == debug


@pytest.mark.parametrize("mode", [*EXECUTED, *EMULATED], ids=lambda mode: mode.name)
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32))
def test_predicted_tokens_are_the_lowest_of_equals(mode, dtype):
    x = torch.randint(0, 4, (20, 3000), generator=torch.Generator().manual_seed(0)).to(mode.device, dtype)
    x[0] = -math.inf
    target = torch.zeros(20, dtype=torch.int32, device=mode.device)
    with mode.enter():
        out = cross_entropy(x, target, return_predicted_tokens=True, return_token_accuracy=True, reduction="none")
    assert torch.equal(out.predicted_tokens, x.cpu().argmax(-1).to(mode.device))
    assert torch.equal(out.token_accuracy, (out.predicted_tokens == 0).float())


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_backward_again_gives_the_same_gradient(mode):
    x = torch.randn(4, 50, device=mode.device, requires_grad=True)
    with mode.enter():
        loss = cross_entropy(x, torch.tensor([1, 2, 3, 4], device=mode.device))
        first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("mode", EXECUTED, ids=lambda mode: mode.name)
def test_inplace_writes_the_gradient_over_the_logits_once(mode):
    leaf = torch.randn(4, 50, device=mode.device, requires_grad=True)
    target = torch.tensor([1, 2, 3, 4], device=mode.device)
    wanted = torch.autograd.grad(torch.nn.functional.cross_entropy(leaf, target), leaf)[0]
    logits = leaf * 1.0
    with mode.enter():
        loss = cross_entropy(logits, target, inplace=True)
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert gradient.data_ptr() == logits.data_ptr()
        torch.testing.assert_close(gradient, wanted)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, logits)


def test_inplace_leaves_the_logits_alone_under_compile():
    logits = torch.randn(4, 50, requires_grad=True)
    before, target = logits.detach().clone(), torch.tensor([1, 2, 3, 4])
    loss = torch.compile(cross_entropy, backend="aot_eager", fullgraph=True)(logits, target, inplace=True)
    loss.backward()
    assert torch.equal(logits, before)
    torch.testing.assert_close(logits.grad, torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target), logits)[0])


@pytest.mark.parametrize("mode", KERNELS, ids=lambda mode: mode.name)
@pytest.mark.parametrize("inplace", (False, True))
def test_memory_is_the_gradient_and_a_few_values_per_row(mode, inplace):
    rows, width = 16, 2000
    logits = torch.randn(rows, width, device=mode.device).requires_grad_()
    logits = logits * 1.0
    target = torch.zeros(rows, dtype=torch.int64, device=mode.device)
    with PeakMemory([logits, target]) as memory, mode.enter():
        cross_entropy(logits, target, label_smoothing=0.1, inplace=inplace).backward(inputs=[logits.grad_fn.next_functions[0][0].variable])
    gradients = 1 if inplace else 2  # of the product by 1.0, then ours
    assert memory.peak - 4 * rows * (width + 2) <= gradients * 4 * rows * width + 64 * rows


def test_module_is_a_drop_in_for_torch():
    x, target, weight = torch.randn(6, 10, requires_grad=True), torch.tensor([0, 1, 2, -100, 4, 5]), torch.rand(10)
    for options in ({}, {"weight": weight}, {"ignore_index": -100}, {"reduction": "sum"}, {"label_smoothing": 0.2, "reduction": "none"}):
        torch.testing.assert_close(CrossEntropyLoss(**options)(x, target), torch.nn.CrossEntropyLoss(**options)(x, target))
    assert isinstance(CrossEntropyLoss(), torch.nn.CrossEntropyLoss)
    out = CrossEntropyLoss(softcap=3.0, lse_square_scale=0.1, return_z_loss=True)(x, target)
    assert isinstance(out, CrossEntropyOutput) and out.token_accuracy is None
    torch.testing.assert_close(
        out[:2], cross_entropy_reference(x, target, softcap=3.0, lse_square_scale=0.1, return_z_loss=True)[:2]
    )  # fmt: skip


def test_leading_dimensions_are_those_of_the_target():
    x, target = torch.randn(2, 3, 10), torch.randint(0, 10, (2, 3))
    assert cross_entropy(x, target, reduction="none").shape == (2, 3)
    assert cross_entropy(x[0, 0], target[0, 0]).shape == ()


X, T = torch.ones(2, 4), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], T), {}, TypeError, r"logits must be a torch.Tensor \(got list\)"),
        ((X.double(), T), {}, TypeError, r"logits must have dtype .* \(got float64\)"),
        ((torch.ones(2, 0), T), {}, ValueError, r"logits must have at least one class .* \(got shape \(2, 0\)\)"),
        ((X, X), {}, TypeError, r"target must have dtype int64 or int32 \(got float32\)"),
        ((X, T[:1]), {}, ValueError, r"target must have shape \(2,\) \(got \(1,\)\)"),
        ((X, T, torch.ones(3)), {}, ValueError, r"weight must have shape \(4,\) \(got \(3,\)\)"),
        ((X, T, T), {}, TypeError, r"weight must be a torch.Tensor|weight must have dtype"),
        ((X, T), {"reduction": "avg"}, ValueError, r"reduction must be one of 'none', 'mean', 'sum' \(got 'avg'\)"),
        ((X, T), {"ignore_index": 1.0}, TypeError, r"ignore_index must be an int \(got float\)"),
        ((X, T), {"label_smoothing": 1.5}, ValueError, r"label_smoothing must lie in \[0, 1\] \(got 1.5\)"),
        ((X, T), {"label_smoothing": None}, TypeError, r"label_smoothing must be a number \(got NoneType\)"),
        ((X, T), {"lse_square_scale": "1e-4"}, TypeError, r"lse_square_scale must be a number \(got str\)"),
        ((X, T), {"softcap": 0.0}, ValueError, r"softcap must be above 0, or None \(got 0.0\)"),
        ((X, T), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        cross_entropy(*arguments, **options)


def test_module_checks_its_options():
    with pytest.raises(ValueError, match=r"reduction must be one of 'none', 'mean', 'sum' \(got 'avg'\)"):
        CrossEntropyLoss(reduction="avg")


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match="torch_npu has no cross-entropy with these options; use 'eager'"):
        cross_entropy(X, T, implementation="vendor")


def test_eager_is_the_reference():
    assert torch.equal(cross_entropy(X, T, implementation="eager"), cross_entropy_reference(X, T))


if torch.cuda.is_available():  # needs the memory of a GPU

    @pytest.mark.parametrize("inplace", (False, True))
    def test_more_elements_than_32_bits_count(inplace):
        rows, vocab = 17000, 128256
        logits = torch.randn(rows, vocab, dtype=torch.bfloat16, device="cuda").requires_grad_()
        target = torch.randint(vocab, (rows,), device="cuda")
        some = torch.tensor([0, 2**31 // vocab - 1, 2**31 // vocab, 2**31 // vocab + 1, rows - 1], device="cuda")
        x = logits.detach()[some].float().requires_grad_()
        wanted = torch.nn.functional.cross_entropy(x, target[some], reduction="none")
        (slope,) = torch.autograd.grad(wanted.sum(), x)
        loss = cross_entropy(logits, target, reduction="none", inplace=inplace)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        torch.testing.assert_close(loss[some], wanted)
        torch.testing.assert_close(gradient[some].float(), slope, rtol=0.01, atol=1e-9)
        assert loss.isfinite().all()

    def test_more_rows_than_a_grid_of_an_npu():
        x = torch.randn(70_000, 1000, device="cuda", requires_grad=True)
        target = torch.randint(1000, (70_000,), device="cuda")
        losses = [function(x, target, reduction="none") for function in (cross_entropy, torch.nn.functional.cross_entropy)]
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), x)[0] for loss in losses), rtol=1e-4, atol=1e-7)
