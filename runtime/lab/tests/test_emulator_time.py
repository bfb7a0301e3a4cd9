"""The time line: what bounds a kernel, that long loops may be cut short, that the same input gives the same time."""

from __future__ import annotations

import weakref

import pytest
import torch

from npu_op_lab.emulator import Emulation, emulate, model_eager, trace
from npu_op_lab.emulator.costs import gm_bandwidth, table
from npu_op_lab.emulator.run import RunTime
from npu_op_runtime.soc import get_soc

from . import emulated_kernels as kernels


def _rms(n_rows: int, rows: int, soc: str = "Ascend910B4", n_cols: int = 4096, cores: int = 40) -> Emulation:
    x = torch.empty(n_rows, n_cols, dtype=torch.bfloat16)
    with emulate(soc, values=False) as run:
        kernels.rms_rows[(cores,)](x, torch.empty_like(x), n_rows, n_cols, ROWS=rows, BLOCK=n_cols)
    return run


def _double(n: int, block: int, cores: int = 40, soc: str = "Ascend910B4") -> Emulation:
    with emulate(soc, values=False) as run:
        kernels.double[(cores,)](torch.empty(n), torch.empty(n), n, BLOCK=block)
    return run


@pytest.mark.parametrize(("rows", "n_cols"), [(1, 4096), (2, 4096), (4, 4096), (2, 1024)])
def test_a_cut_loop_takes_the_time_of_the_whole_one(rows: int, n_cols: int, monkeypatch: pytest.MonkeyPatch) -> None:
    short = _rms(32768, rows, n_cols=n_cols).kernels[0]
    monkeypatch.setattr("npu_op_lab.emulator.machine.WARM", 10**9)
    full = _rms(32768, rows, n_cols=n_cols).kernels[0]
    assert short.seconds == pytest.approx(full.seconds, rel=0.02)
    assert short.hbm_in + short.hbm_out == pytest.approx(full.hbm_in + full.hbm_out, rel=1e-9)
    assert short.busy == pytest.approx(full.busy, rel=0.03)


def test_trips_are_cut_in_even_numbers() -> None:
    # Alternating buffers and flags keep their turn.
    assert trace.WARM % 2 == trace.MEASURED % 2 == trace.LAST % 2 == 0


def test_the_same_input_gives_the_same_time() -> None:
    assert _rms(5000, 2).seconds == _rms(5000, 2).seconds


def test_values_and_timing_only_agree_on_the_time() -> None:
    x = torch.randn(512, 4096, dtype=torch.bfloat16)
    with emulate() as run:
        kernels.rms_rows[(40,)](x, torch.empty_like(x), 512, 4096, ROWS=2, BLOCK=4096)
    assert run.seconds == _rms(512, 2).seconds


def test_rows_at_addresses_that_hang_on_data_take_the_time_of_other_rows() -> None:
    """Gathered, no row twice: with values the addresses are known, without them they are not."""
    n_rows, n_cols = 40 * 32, 64
    x, picked = torch.randn(n_rows, n_cols), torch.randperm(n_rows)
    y = torch.empty_like(x)
    with emulate() as known:
        kernels.gather_rows[(40,)](x, picked, y, n_rows, n_cols, ROWS=16)
    assert torch.equal(y, x[picked])
    with emulate(values=False) as unknown:
        kernels.gather_rows[(40,)](x, picked, y, n_rows, n_cols, ROWS=16)
    assert unknown.seconds == known.seconds
    (kernel,) = unknown.kernels
    assert (kernel.hbm_in, kernel.hbm_out) == (x.nbytes + picked.nbytes, y.nbytes)


def test_a_copy_of_large_tiles_is_bound_by_hbm_and_never_above_the_ceiling() -> None:
    n = 1 << 26
    for ceiling in ("cann", "measured"):
        kernel = _double(n, 8192).time(ceiling).kernels[0]
        bandwidth = gm_bandwidth(get_soc("Ascend910B4"), ceiling)
        assert kernel.hbm_in + kernel.hbm_out == 8 * n
        assert kernel.bound == "HBM"
        assert 0.9 <= 8 * n / bandwidth / kernel.seconds <= 1.0 + 1e-9


def test_a_write_over_what_was_read_goes_to_hbm_and_a_second_one_does_not() -> None:
    n = 1 << 22
    x = torch.empty(n)
    with emulate(values=False) as first:
        kernels.double[(40,)](x, x, n, BLOCK=8192)
    with emulate(values=False) as second:
        kernels.write_twice[(40,)](x, n, BLOCK=8192)
    (in_place,), (twice,) = first.kernels, second.kernels
    assert (in_place.hbm_in, in_place.hbm_out, in_place.l2) == (4 * n, 4 * n, 0)
    assert (twice.hbm_in, twice.hbm_out, twice.l2) == (4 * n, 4 * n, 4 * n)


@pytest.mark.parametrize(("n", "l2"), ((1 << 20, True), (1 << 25, False)))
def test_what_l2_holds_of_the_kernels_before_is_not_read_from_hbm(n: int, l2: bool) -> None:
    """4 MiB stay in the 96 MiB of a 910B4, 128 MiB do not."""
    x, y = torch.empty(n), torch.empty(n)
    with emulate(values=False) as run:
        double = kernels.double[(40,)]
        double(x.neg(), y, n, BLOCK=8192)  # from PyTorch's kernel
        double(y, x, n, BLOCK=8192)  # from one of ours
        x.sum()  # and back
    hbm = [kernel.hbm_in for kernel in run.kernels]
    assert hbm == ([0, 0] if l2 else [4 * n, 4 * n])
    assert [kernel.hbm_out for kernel in run.kernels] == [4 * n, 4 * n]
    # neg reads x and, where it must, writes its result; the sum reads x where it must.
    assert run.time().aten.hbm_bytes == (4 * n if l2 else 12 * n)


def test_small_transfers_are_bound_by_their_latency() -> None:
    large, small = _double(1 << 24, 8192).kernels[0], _double(1 << 24, 64).kernels[0]
    assert small.seconds > 3 * large.seconds
    assert small.bound == "latency"


def test_a_scalar_per_row_costs_more_than_a_tile_of_rows() -> None:
    # One row a tile reduces to a scalar, which the vector pipe has to wait for.
    one, two = (_rms(8192, rows).time("cann").kernels[0] for rows in (1, 2))
    assert one.seconds > 1.1 * two.seconds
    assert one.stalls[0].pipe == "S"
    assert one.stalls[0].where.startswith("emulated_kernels.py:")


def test_one_core_alone_is_not_slowed_by_hbm() -> None:
    kernel = _double(1 << 20, 8192, cores=1).time("cann").kernels[0]
    assert kernel.hbm_share < 0.2
    assert kernel.seconds > 5 * _double(1 << 20, 8192, cores=40).time("cann").kernels[0].seconds


def test_more_programs_than_cores_pay_for_their_start() -> None:
    n = 1 << 22
    assert _double(n, 1024, cores=4096).kernels[0].seconds > 1.2 * _double(n, 1024, cores=40).kernels[0].seconds


def test_a_faster_chip_is_faster() -> None:
    b4, a3 = (_rms(8192, 2, soc=soc, cores=get_soc(soc).vector_cores).kernels[0].seconds for soc in ("Ascend910B4", "Ascend910_9391"))
    assert a3 < b4


def test_a_run_pays_a_launch_for_each_kernel() -> None:
    run = _double(1 << 20, 8192)
    assert run.seconds == run.kernels[0].seconds + table()["launch_seconds"]


@pytest.mark.parametrize("values", (True, False))
def test_a_launch_that_is_over_holds_no_memory(values: bool) -> None:
    x = torch.zeros(1 << 14)
    freed: list[bool] = []
    weakref.finalize(x.untyped_storage(), freed.append, True)
    with emulate(values=values) as run:
        kernels.double[(8,)](x, torch.empty_like(x), 1 << 14, BLOCK=2048)
        del x
        assert freed
    assert run.kernels[0].hbm_in == 4 << 14


def test_every_cost_has_its_source() -> None:
    import json
    from importlib import resources

    raw = json.loads(resources.files("npu_op_lab.emulator").joinpath("costs.json").read_text())
    single = [entry for entry in raw.values() if isinstance(entry, dict) and "value" in entry]
    entries = [*single, *raw["vector_bytes_per_cycle"].values(), *raw["measured_bandwidth"]]
    assert len(entries) > 20
    assert all(entry["source"] and entry["value"] > 0 for entry in entries)


def test_unknown_ceiling_and_soc_are_refused() -> None:
    with pytest.raises(ValueError, match="ceiling must be 'cann' or 'measured'"), emulate(ceiling="guess"):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="soc must be one of"), emulate("Ascend310P"):
        pass
    with pytest.raises(ValueError, match="no GM rate"), emulate("Ascend910_9599"):
        pass
    with pytest.raises(ValueError, match="no measured bandwidth"), emulate("Ascend910_9581"):
        pass


def test_beside_products_l2_keeps_what_a_kernel_writes_as_it_keeps_what_pytorch_writes() -> None:
    weight, n = torch.empty(2048, 2048, dtype=torch.float16), 1024 * 2048

    def doubled(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernels.double[(40,)](x, y, x.numel(), BLOCK=2048)
        return y

    def times(rows: int, product: bool) -> RunTime:
        x = torch.empty(rows, 2048, dtype=torch.float16)
        with emulate(values=False) as run:
            y = doubled(x)
            if product:
                y @ weight
        return run.time()

    # Freed before L2 lacks room: never in HBM. Without a product there is no idle HBM that would take it.
    apart, beside = times(1024, False), times(1024, True)
    assert (apart.kernels[0].hbm_out, beside.kernels[0].hbm_out, beside.kernels[0].hbm_in) == (2 * n, 0, 2 * n)
    assert beside.kernels[0].l2 == 2 * n and beside.kernels[0].seconds < apart.kernels[0].seconds
    # 128 MiB, more than the 96 MiB of L2, are in HBM when the kernel ends.
    assert times(32 * 1024, True).kernels[0].hbm_out == 2 * 32 * n


@pytest.mark.parametrize(("rows", "idle"), ((1, False), (8192, True)))
def test_what_l2_keeps_is_written_while_the_cube_works_or_charged(rows: int, idle: bool) -> None:
    left, right = torch.empty(rows, 2048, dtype=torch.float16), torch.empty(2048, 4096, dtype=torch.float16)
    x, y = torch.empty(1024 * 4096), torch.empty(1024 * 4096)
    product = model_eager(lambda a, b: (a @ b).numel(), left.to("meta"), right.to("meta")).seconds
    with emulate(values=False) as run:
        left @ right
        kernels.double[(40,)](x, y, x.numel(), BLOCK=2048)  # y stays: it has to get to HBM
    late = run.time().aten.seconds - product
    assert late == pytest.approx(0 if idle else y.nbytes / gm_bandwidth(get_soc("Ascend910B4"), "measured"))
