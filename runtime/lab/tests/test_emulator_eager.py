"""The eager model: which ATen kernels it counts, with which bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from npu_op_lab.emulator import emulate, gm_bandwidth, model_eager
from npu_op_lab.emulator.costs import table
from npu_op_runtime.soc import get_soc

from . import emulated_kernels as kernels


def _bf16(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def test_each_kernel_reads_its_inputs_and_writes_its_output() -> None:
    # Larger than L2: everything comes from HBM and goes there.
    timing = model_eager(lambda gate, up: F.gelu(gate, approximate="tanh") * up, _bf16(16384, 4096), _bf16(16384, 4096))
    size = 2 * 16384 * 4096
    assert [(kernel.name, kernel.bytes) for kernel in timing.kernels] == [("gelu", 2 * size), ("mul", 3 * size)]
    assert timing.bytes == timing.hbm_bytes == 5 * size
    expected = 5 * size / gm_bandwidth(get_soc("Ascend910B4"), "measured") + 2 * table()["launch_seconds"]
    assert timing.seconds == pytest.approx(expected, rel=1e-12)


def test_what_fits_l2_moves_only_inputs_and_outputs_from_and_to_hbm() -> None:
    timing = model_eager(lambda gate, up: F.gelu(gate, approximate="tanh") * up, _bf16(1024, 4096), _bf16(1024, 4096))
    size = 2 * 1024 * 4096
    assert (timing.bytes, timing.hbm_bytes) == (5 * size, 3 * size)


def test_l2_forgets_what_was_used_least_recently_and_writes_it_back() -> None:
    third = _bf16(20 * 1024, 1024)  # 40 MiB of the 96 MiB of a 910B4
    other, more = torch.empty_like(third), torch.empty_like(third)

    def twice() -> list[torch.Tensor]:
        kept = third.neg()  # written: dirty in L2
        return [kept, other.neg(), more.neg(), kept.neg()]

    size = 2 * third.numel()
    # Three inputs, the first result again, and four results.
    assert model_eager(twice).hbm_bytes == 8 * size


def test_a_kept_result_is_written_and_a_dropped_one_is_not() -> None:
    x = _bf16(1024, 1024)
    assert model_eager(lambda: x.neg()).hbm_bytes == 4 * x.numel()
    assert model_eager(lambda: [x.neg(), None][1]).hbm_bytes == 2 * x.numel()


def test_views_and_allocations_are_free() -> None:
    timing = model_eager(lambda x: x.view(4, -1).transpose(0, 1)[1:].detach(), _bf16(8, 8))
    assert timing.kernels == ()
    assert model_eager(lambda x: torch.empty_like(x), _bf16(8, 8)).kernels == ()


def test_expanded_and_repeated_operands_are_read_once() -> None:
    weight = _bf16(64)
    assert model_eager(lambda w: w.expand(100, 64) * w.expand(100, 64), weight).kernels[0].bytes == 2 * (64 + 64 + 6400)
    x = _bf16(100)
    assert model_eager(lambda x: x * x, x).kernels[0].bytes == 2 * 200


def test_fills_write_and_copies_read_their_source_only() -> None:
    assert model_eager(lambda: torch.zeros(100, device="meta")).kernels[0].bytes == 400
    a, b = _bf16(100), _bf16(100)
    assert model_eager(lambda: a.copy_(b)).kernels[0].bytes == 400


@pytest.mark.parametrize(
    ("call", "sizes"),
    (
        # Rows of 128 bytes and positions of 8 bytes: read and written as often as there are positions.
        (lambda table, at: table.index_select(0, at), (100 * (128 + 8 + 128),)),
        (lambda table, at: table[at], (100 * (128 + 8 + 128),)),
        (lambda table, at: F.embedding(at, table), (100 * (128 + 8 + 128),)),
        (lambda table, at: table[:200].index_select(0, at[:10].repeat(100)), (10 * 8 + 1000 * 8, 200 * 128 + 1000 * (8 + 128))),
        (lambda table, at: table[:100].gather(1, at[:, None]), (100 * (2 + 8 + 2),)),
        (lambda table, at: table.index_add_(0, at, table[:100]), (100 * (128 + 8 + 128 + 128),)),
        (lambda table, at: F.nll_loss(table[:100], at, reduction="none"), (100 * (2 + 8 + 2) + 2,)),
    ),
    ids=("index_select", "index", "embedding", "repeated", "gather", "index_add_", "nll_loss"),
)
def test_of_a_table_only_what_is_picked_is_touched(call: Callable[..., torch.Tensor], sizes: tuple[int, ...]) -> None:
    positions = torch.empty(100, dtype=torch.int64, device="meta")
    assert tuple(kernel.bytes for kernel in model_eager(call, _bf16(5000, 64), positions).kernels) == sizes


def test_the_gradient_of_a_picked_loss_does_not_read_the_logits() -> None:
    logits = _bf16(100, 64).requires_grad_()
    loss = F.nll_loss(logits, torch.empty(100, dtype=torch.int64, device="meta"), reduction="none")
    (kernel,) = model_eager(lambda: torch.autograd.grad(loss, logits, _bf16(100))).kernels
    # The incoming gradient, the target and the sum of weights in; the gradient out.
    assert (kernel.name, kernel.bytes) == ("nll_loss_backward", 100 * (2 + 8) + 2 + 100 * 128)


def test_a_backward_pass_is_counted() -> None:
    x = torch.randn(32, 64, requires_grad=True)
    names = [kernel.name for kernel in model_eager(lambda: torch.tanh(x).sum().backward()).kernels]
    assert names[:2] == ["tanh", "sum"]
    assert "tanh_backward" in names


@pytest.mark.parametrize(("soc", "tflops"), (("Ascend910B4", 245.76), ("Ascend910B1", 363.7248)))
def test_a_large_product_takes_the_time_of_the_cube(soc: str, tflops: float) -> None:
    a, b = _bf16(8192, 4096), _bf16(4096, 11008)
    flops = 2 * 8192 * 4096 * 11008
    seconds = {ceiling: model_eager(torch.mm, a, b, soc=soc, ceiling=ceiling).seconds for ceiling in ("cann", "measured")}
    assert seconds["cann"] == pytest.approx(flops / (tflops * 1e12) + table()["launch_seconds"], rel=1e-9)
    assert 0.9 < (seconds["cann"] - table()["launch_seconds"]) / (seconds["measured"] - table()["launch_seconds"]) < 0.96


def test_a_thin_product_takes_the_time_of_its_memory() -> None:
    a, b = _bf16(1, 8192), _bf16(8192, 32768)
    timing = model_eager(torch.mm, a, b, ceiling="cann")
    assert timing.seconds == pytest.approx(timing.hbm_bytes / 0.96e12 + table()["launch_seconds"], rel=1e-3)
    assert timing.hbm_bytes == 2 * (8192 + 8192 * 32768 + 32768)


@pytest.mark.parametrize(
    ("call", "flops"),
    (
        (lambda: F.linear(_bf16(3, 5, 64), _bf16(32, 64)), 2 * 15 * 64 * 32),
        (lambda: torch.bmm(_bf16(3, 5, 64), _bf16(3, 64, 7)), 3 * 2 * 5 * 64 * 7),
        (lambda: _bf16(5, 7).addmm_(_bf16(5, 64), _bf16(64, 7)), 2 * 5 * 64 * 7),
        (lambda: torch.mm(_bf16(5, 64), _bf16(64, 7), out=_bf16(5, 7)), 2 * 5 * 64 * 7),
    ),
    ids=("linear", "bmm", "addmm_", "out"),
)
def test_operations_of_a_product(call: Callable[[], torch.Tensor], flops: int) -> None:
    (kernel,) = model_eager(call).kernels
    assert (kernel.flops, kernel.operands) == (flops, torch.bfloat16)


def test_fp32_products_run_at_a_quarter_and_others_are_refused_by_name() -> None:
    def seconds(dtype: torch.dtype) -> float:
        square = torch.empty(8192, 8192, dtype=dtype, device="meta")
        return model_eager(torch.mm, square, square).seconds - table()["launch_seconds"]

    assert seconds(torch.float32) == pytest.approx(4 * seconds(torch.float16))
    with pytest.raises(NotImplementedError, match="a matrix product of torch.float64 is not covered"):
        seconds(torch.float64)
    with pytest.raises(NotImplementedError, match="aten::mv runs on the cube core"):
        model_eager(torch.mv, _bf16(8, 8), _bf16(8))
    with pytest.raises(ValueError, match="Ascend910_9579 has no cube rate"):
        model_eager(torch.mm, _bf16(8, 8), _bf16(8, 8), soc="Ascend910_9579")


def test_without_values_products_cost_time_but_are_not_computed() -> None:
    a, b = torch.randn(256, 512), torch.randn(512, 128, requires_grad=True)
    times = []
    for values in (True, False):
        with emulate(values=values) as run:
            product = a @ b
            (gradient,) = torch.autograd.grad(product, b, torch.ones(256, 128))
            summed = torch.ones(256, 128).addmm_(a, b.detach())
        assert (product.shape, gradient.shape, summed.shape) == ((256, 128), (512, 128), (256, 128))
        if values:
            torch.testing.assert_close(summed, product + 1)
        else:
            assert torch.equal(summed, torch.ones(256, 128))
        times.append(run.seconds)
    assert times[0] == times[1] > 3 * table()["launch_seconds"]


def test_pytorchs_kernels_within_emulate_are_part_of_the_time() -> None:
    x, y = torch.randn(1 << 16), torch.empty(1 << 16)
    with emulate() as run:
        kernels.double[(40,)](x, y, 1 << 16, BLOCK=2048)
        y.sum()
    (summed,) = run.time().aten.kernels
    assert (summed.name, summed.bytes) == ("sum", 4 * (1 << 16) + 4)
    assert run.seconds == pytest.approx(run.kernels[0].seconds + run.time().aten.seconds + table()["launch_seconds"], rel=1e-12)
