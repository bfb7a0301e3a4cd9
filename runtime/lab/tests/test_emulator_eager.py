"""The eager model: which ATen kernels it counts, with which bytes."""

from __future__ import annotations

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


def test_a_backward_pass_is_counted() -> None:
    x = torch.randn(32, 64, requires_grad=True)
    names = [kernel.name for kernel in model_eager(lambda: torch.tanh(x).sum().backward()).kernels]
    assert names[:2] == ["tanh", "sum"]
    assert "tanh_backward" in names


def test_products_of_matrices_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="aten::mm runs on the cube core"):
        model_eager(lambda a: a @ a, _bf16(8, 8))


def test_pytorchs_kernels_within_emulate_are_part_of_the_time() -> None:
    x, y = torch.randn(1 << 16), torch.empty(1 << 16)
    with emulate() as run:
        kernels.double[(40,)](x, y, 1 << 16, BLOCK=2048)
        y.sum()
    (summed,) = run.time().aten.kernels
    assert (summed.name, summed.bytes) == ("sum", 4 * (1 << 16) + 4)
    assert run.seconds == pytest.approx(run.kernels[0].seconds + run.time().aten.seconds + table()["launch_seconds"], rel=1e-12)
