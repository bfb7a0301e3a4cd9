"""Every detector of the emulator, proved by a kernel with the fault it looks for; the compiler's own output is edited where needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from npu_op_lab import operators
from npu_op_lab.compiler import Launch, offline
from npu_op_lab.emulator import EmulatedLaunch, FaultyKernel, UndefinedBehavior, emulate
from npu_op_lab.emulator.machine import _ranges
from npu_op_lab.emulator.memory import UB, View
from npu_op_runtime.soc import get_soc

from . import emulated_kernels as kernels

B4 = "Ascend910B4"


def _launch() -> Launch:
    x = torch.randn(512, 4096, dtype=torch.bfloat16)
    with offline(B4) as launches:
        kernels.rms_rows[(40,)](x, torch.empty_like(x), 512, 4096, ROWS=2, BLOCK=4096)
    return launches[0]


def _edited(edit: Callable[[str], str]) -> list[tuple[str, str]]:
    launch = _launch()
    text = edit(launch.kernel.ir)
    assert text != launch.kernel.ir
    run = EmulatedLaunch(replace(launch, kernel=replace(launch.kernel, ir=text)), get_soc(B4), values=True, checks=True)
    return [(finding.kind, finding.message) for finding in run.findings]


def _without(pattern: str, count: int = 0) -> Callable[[str], str]:
    """Deletes the lines that match, or only the first `count` of them."""
    return lambda text: re.sub(rf"^.*(?:{pattern}).*\n", "", text, count=count, flags=re.MULTILINE)


def test_the_compilers_own_output_has_no_fault() -> None:
    assert EmulatedLaunch(_launch(), get_soc(B4), values=True, checks=True).findings == []


def test_a_load_that_the_vector_pipe_does_not_wait_for_is_a_race() -> None:
    found = _edited(_without(r"_flag.*set_pipe = #hivm.pipe<PIPE_MTE2>.*wait_pipe = #hivm.pipe<PIPE_V>"))
    assert any(kind == "race" and "vcast" in message and "hir.load" in message and "read after write" in message for kind, message in found)


def test_a_store_that_does_not_wait_for_the_vector_pipe_is_a_race() -> None:
    found = _edited(_without(r"_flag.*set_pipe = #hivm.pipe<PIPE_V>.*wait_pipe = #hivm.pipe<PIPE_MTE3>"))
    assert any(kind == "race" and "hir.store" in message and "read after write" in message for kind, message in found)


def test_a_buffer_reloaded_before_it_was_read_is_a_race() -> None:
    # The double-buffered input: the vector pipe no longer tells MTE2 that it has read the tile.
    found = _edited(_without(r"_flag.*set_pipe = #hivm.pipe<PIPE_V>.*wait_pipe = #hivm.pipe<PIPE_MTE2>"))
    assert any(kind == "race" and "hir.load" in message and "write after read" in message for kind, message in found)


def test_a_dependent_vector_instruction_without_a_barrier_is_a_race() -> None:
    found = _edited(_without(r"pipe_barrier.*PIPE_V"))
    assert any(kind == "race" and "no pipe barrier" in message for kind, message in found)


def test_a_flag_that_nothing_sets_is_a_deadlock() -> None:
    found = _edited(_without(r"set_flag.*set_pipe = #hivm.pipe<PIPE_MTE2>.*wait_pipe = #hivm.pipe<PIPE_V>"))
    assert any(kind == "deadlock" and "wait_flag(PIPE_MTE2 to PIPE_V)" in message for kind, message in found)


def test_a_buffer_that_nothing_filled_is_unwritten() -> None:
    found = _edited(_without(r'"hivm.hir.load"'))
    assert any(kind == "unwritten" and "vcast reads 8192 of 8192" in message for kind, message in found)


def test_a_masked_load_without_padding_reads_unwritten_lanes() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    with emulate(faults="collect") as run:
        kernels.without_padding[(1,)](x, y, 1000, BLOCK=1024)
    assert [finding.kind for finding in run.findings][:1] == ["unwritten"]
    assert run.findings[0].where.startswith("emulated_kernels.py:")
    assert y[1000:].isnan().all()


def test_two_programs_writing_one_row_race() -> None:
    with (
        pytest.raises(FaultyKernel, match=r"all_write_row_0 at emulated_kernels.py:\d+: .*store.*program 1.*program 0.*argument 1"),
        emulate(),
    ):
        kernels.all_write_row_0[(4,)](torch.randn(4, 512), torch.empty(512), BLOCK=512)


def test_reading_what_another_program_writes_is_a_race() -> None:
    with emulate(faults="collect") as run:
        kernels.read_a_neighbour[(3,)](torch.randn(4, 512), BLOCK=512)
    assert [finding.kind for finding in run.findings] == ["gm-race"]


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_reading_what_others_add_is_a_race_whoever_adds_last(reader: int) -> None:
    x, y, seen = torch.randn(3, 64), torch.zeros(64), torch.empty(64)
    with emulate(faults="collect") as run:
        kernels.add_and_read[(3,)](x, y, seen, reader, BLOCK=64)
    assert [finding.kind for finding in run.findings] == ["gm-race"]
    assert re.search(rf"hivm.hir.load \(emulated_kernels.py:\d+\) of program {reader} and ", run.findings[0].message)


def test_a_program_may_read_what_it_alone_added() -> None:
    with emulate(faults="collect") as run:
        kernels.add_and_read[(1,)](torch.randn(3, 64), torch.zeros(64), torch.empty(64), 0, BLOCK=64)
    assert run.findings == []


def test_a_barrier_that_the_vendors_compiler_left_out_is_found() -> None:
    # It stands in the branch that a full tile never takes. One loop less, or rows summed as a 2-D tile, is compiled well.
    with emulate(faults="collect") as run:
        kernels.partial_sums[(16,)](torch.randn(40, 4096), torch.empty(4096), 40, 4096, BLOCK=256)
    assert [(finding.kind, "no pipe barrier" in finding.message) for finding in run.findings] == [("race", True)]


@pytest.mark.parametrize(("rows", "columns"), [(37, 100), (20, 31), (9, 8)])
def test_masks_of_a_padded_tile_do_not_race(rows: int, columns: int) -> None:
    x = torch.randn(rows, columns)
    y = torch.zeros(rows, columns)
    with emulate() as run:
        kernels.soft_threshold[(1,)](x, y, rows, columns, ROWS=8, BLOCK=columns + 5, TILES=-(-rows // 8))
    assert torch.equal(y, torch.where(x.abs() > 0.5, x.abs(), 0.0))
    assert run.findings == []


def test_the_bytes_of_a_packed_mask() -> None:
    # Rows of 40 bits, 256 bits apart, from bit 8 of byte 64 on.
    assert _ranges(View(UB, 64, 8, (3, 40), (256, 1), "i1")) == [(65, 70), (97, 102), (129, 134)]
    assert _ranges(View(UB, 64, 4, (2, 3), (4, 1), "i1")) == [(64, 65), (65, 66)]
    assert _ranges(View(UB, 64, 2, (2, 3), (8, 1), "f32")) == [(72, 84), (104, 116)]


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize(
    ("divisor", "count", "message"),
    [
        (0, 3, r"arith.divsi at emulated_kernels.py:\d+ divides by zero"),
        (7, -2, r"arith.shli at emulated_kernels.py:\d+ shifts 32 bits by -2"),
        (7, 32, r"arith.shli at emulated_kernels.py:\d+ shifts 32 bits by 32"),
    ],
)
def test_numbers_that_have_no_value_are_refused(values: bool, divisor: int, count: int, message: str) -> None:
    numbers = torch.tensor([100, divisor, count], dtype=torch.int32)
    with pytest.raises(UndefinedBehavior, match=message), emulate(values=values):
        kernels.divide_and_shift[(1,)](numbers, torch.empty(2, dtype=torch.int32), 1)


def test_a_division_in_a_loop_that_does_not_run_divides_nothing() -> None:
    numbers, results = torch.tensor([100, 0, 3], dtype=torch.int32), torch.full((2,), 5, dtype=torch.int32)
    with emulate() as run:
        kernels.divide_and_shift[(1,)](numbers, results, 0)
    assert results.tolist() == [5, 5]
    assert run.findings == []


@pytest.mark.parametrize("values", [True, False])
def test_a_mask_with_its_bounds_exchanged_is_refused(values: bool) -> None:
    with (
        pytest.raises(UndefinedBehavior, match=r"hivm.hir.load at emulated_kernels.py:\d+: a box of sizes \(-5,\)"),
        emulate(values=values),
    ):
        kernels.between[(1,)](torch.ones(128), torch.empty(128), 10, 5, BLOCK=128)


def test_a_loop_that_data_ends_cannot_be_timed_without_values() -> None:
    x, y = torch.ones(64), torch.empty(64)
    with emulate():
        kernels.halve_until_small[(1,)](x, y, BLOCK=64)
    assert (y == 2**-7).all()
    with pytest.raises(NotImplementedError, match=r"scf.while at emulated_kernels.py:\d+: the loop's condition"), emulate(values=False):
        kernels.halve_until_small[(1,)](x, y, BLOCK=64)


def test_an_operator_on_a_meta_tensor_is_refused() -> None:
    x, weight = torch.empty(8, 64, device="meta"), torch.ones(64, device="meta")
    with pytest.raises(ValueError, match="rmsnorm::forward must be called on CPU tensors .*on device meta"), emulate(values=False):
        operators.load("rmsnorm").function(x, weight)


def test_only_known_ways_to_treat_faults() -> None:
    with pytest.raises(ValueError, match="faults must be 'raise' or 'collect'"), emulate(faults="ignore"):
        pass
