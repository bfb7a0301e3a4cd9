"""The offline compiler: launches recorded, one compile per content, errors, and what the report reads from the IR."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.backends import backends
from triton.runtime import driver

from npu_op_lab.compiler import CompileError, Launch, UbOverflow, check, offline, report, requirements
from npu_op_lab.compiler.driver import AscendBackend
from npu_op_lab.compiler.ir import SourceLine, device_functions, name_of, parse, source_line
from npu_op_runtime import device

from .emulated_kernels import gather_rows

B4 = "Ascend910B4"


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@triton.jit(do_not_specialize=["n_rows"])
def _rows(X, Y, n_rows, n_cols: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    for start in range(tl.program_id(0) * BM, n_rows, tl.num_programs(0) * BM):
        rows = start + tl.arange(0, BM)
        mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
        x = tl.load(X + rows[:, None] * n_cols + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, axis=1) / n_cols + 1e-6)[:, None]
        tl.store(Y + rows[:, None] * n_cols + cols[None, :], y.to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _scaled(X, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(X + at, tl.load(X + at) * factor)


@triton.jit
def _specialised(X, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(X + at, tl.load(X + at, mask=at < n, other=0.0) * 2.0, mask=at < n)


@triton.jit
def _cumulative(X, Y, n_rows, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(X + row * BN + cols)
        tl.store(Y + row * BN + cols, tl.cumsum(x, 0))


@triton.jit
def _gathered(X, Index, Y, n_rows, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        index = tl.load(Index + row * BN + cols)
        tl.store(Y + row * BN + cols, tl.load(X + row * BN + index))


@triton.jit
def _row_scalar(X, Y, n_rows, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(X + row * BN + cols)
        tl.store(Y + row * BN + cols, x * (1.0 / tl.sum(x * x, 0)))


@triton.jit
def _gather_once(X, Index, Y, n_rows, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    once = tl.load(X + tl.load(Index + cols))
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        tl.store(Y + row * BN + cols, tl.load(X + row * BN + cols) * once)


@triton.jit
def _column_sums(X, Y, n_rows, n_cols, BN: tl.constexpr):
    for start in range(tl.program_id(0) * BN, n_cols, tl.num_programs(0) * BN):
        cols = start + tl.arange(0, BN)
        total = tl.zeros((BN,), tl.float32)
        for row in range(n_rows):
            total += tl.load(X + row * n_cols + cols, mask=cols < n_cols, other=0.0)
        tl.store(Y + cols, total, mask=cols < n_cols)


@triton.jit
def _column_block(X, Y, n_rows, stride, BM: tl.constexpr, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    for start in range(tl.program_id(0) * BM, n_rows, tl.num_programs(0) * BM):
        at = (start + tl.arange(0, BM))[:, None] * stride + cols[None, :]
        tl.store(Y + at, tl.load(X + at) + 1.0)


@triton.jit
def _product(X, Y, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    tl.store(Y + cols, tl.load(X + cols) * tl.load(Y + cols))


@triton.jit
def _twice(x):
    return tl.exp(x) + 1.0


@triton.jit
def _helped(X, Y, BN: tl.constexpr):
    cols = tl.arange(0, BN)
    tl.store(Y + cols, _twice(tl.load(X + cols)))


def _line_of(kernel: triton.JITFunction, text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number in range(kernel.starting_line_number, len(lines)) if text in lines[number - 1])


def _launch_rows(rows: int = 512, tile: int = 2, cols: int = 4096, block: int = 4096) -> None:
    x = torch.empty(rows, cols, dtype=torch.bfloat16)
    _rows[(40,)](x, torch.empty_like(x), rows, cols, BM=tile, BN=block)


def test_a_launch_is_recorded_and_handed_on_with_its_live_arguments():
    handed: list[Launch] = []
    x = torch.empty(512, 4096, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    with offline(B4, handed.append) as launches:
        _rows[(8, 5)](x, y, 512, 4096, BM=2, BN=4096)
    assert launches == handed
    (launch,) = launches
    assert (launch.kernel.name, launch.kernel.soc, launch.grid) == ("_rows", B4, (8, 5, 1))
    assert launch.args[0] is x and launch.args[1] is y and launch.args[2:] == [512]
    (function,) = device_functions(parse(launch.kernel.ir))
    # ffts address, lock, workspace, the live arguments, the grid
    assert len(function.regions[0].block.args) == 3 + len(launch.args) + 3


def test_specialised_arguments_leave_the_live_ones():
    x = torch.empty(4096)
    with offline(B4) as launches:
        _specialised[(1,)](x, 1, BLOCK=64)
        _specialised[(1,)](x, 4096, BLOCK=64)
    assert [len(launch.args) for launch in launches] == [1, 2]


def test_ten_row_counts_are_one_compile():
    with offline(B4) as launches:
        for rows in (1, 2, 3, 15, 16, 17, 64, 1000, 4096, 65536):
            _launch_rows(rows)
    assert len({launch.kernel.key for launch in launches}) == 1
    assert [launch.args[2] for launch in launches] == [1, 2, 3, 15, 16, 17, 64, 1000, 4096, 65536]


def test_an_argument_that_is_specialised_compiles_again():
    x = torch.empty(4096)
    with offline(B4) as launches:
        for n in (1, 16, 17):
            _specialised[(1,)](x, n, BLOCK=64)
    assert len({launch.kernel.key for launch in launches}) == 3


def test_socs_in_one_process_are_kept_apart():
    kernels = []
    for soc in (B4, "910B1", B4):
        with offline(soc) as launches:
            cores = driver.active.utils.get_device_properties(0)["num_vectorcore"]
            _launch_rows()
        kernels.append((launches[0].kernel, cores))
    (b4, b4_cores), (b1, b1_cores), (again, _) = kernels
    assert (b4.soc, b4_cores, b1.soc, b1_cores) == (B4, 40, "Ascend910B1", 48)
    assert b4.key == again.key != b1.key
    assert '"VECTOR_CORE_COUNT", 40' in b4.ir and '"VECTOR_CORE_COUNT", 48' in b1.ir


def test_the_same_kernel_gives_the_same_text(tmp_path, monkeypatch):
    texts = set()
    for folder in ("a", "b"):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / folder))
        _rows.cache.clear()
        with offline(B4) as launches:
            _launch_rows()
        texts.add(launches[0].kernel.ir)
    assert len(texts) == 1


def test_everything_is_restored_even_after_an_error():
    before = (driver.active, dict(backends), dict(os.environ))
    with pytest.raises(ZeroDivisionError), offline(B4):
        assert device.kernels_on_cpu()
        raise ZeroDivisionError
    assert (driver.active, dict(backends), dict(os.environ)) == before
    assert not device.kernels_on_cpu()


def test_ub_overflow_names_kernel_soc_and_bits_also_from_the_cache():
    for _ in range(2):
        _rows.cache.clear()
        with (
            pytest.raises(UbOverflow, match=r"_rows for Ascend910B4: UB overflow, \d+ bits required, 1572864 available") as caught,
            offline(B4),
        ):
            _launch_rows(tile=16)
        assert caught.value.required_bits > caught.value.available_bits == 1572864


def test_the_ub_in_use_is_what_the_compiler_says_it_needs():
    x = torch.empty(4096)
    with offline(B4) as launches:
        _specialised[(1,)](x, 4096, BLOCK=8192, multibuffer=False)
        with pytest.raises(UbOverflow) as caught:
            _specialised[(1,)](x, 4096, BLOCK=65536, multibuffer=False)
    # Every buffer grows with the tile, so the overflow tells what eight times the tile takes.
    assert 8 * report(launches[0].kernel).ub_bytes == caught.value.required_bits // 8


def test_another_refusal_names_kernel_soc_and_line():
    x = torch.empty(512, dtype=torch.float64)
    where = rf'test_compiler.py":{_line_of(_product, "tl.store")}:'
    for _ in range(2):
        with pytest.raises(CompileError, match=f"_product for Ascend910B4: bishengir-compile failed: .*{where}"), offline(B4):
            _product[(1,)](x, x, BN=512)


def test_what_cannot_be_compiled_is_refused_by_name(monkeypatch):
    with pytest.raises(ValueError, match="Ascend910B4"), offline("Ascend999"):
        pass
    with pytest.raises(NotImplementedError, match="Ascend910_9579 is A5"), offline("Ascend910_9579"):
        pass
    with offline(B4), pytest.raises(NotImplementedError, match="autotuning measures on a device"):
        driver.active.get_benchmarker()(lambda: None, quantiles=(0.5,))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"), offline(B4):
        pass


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("ascendnpuir", r"needs ascendnpu-ir: pip install 'npu-op-lab\[compiler\]'"),
        ("triton", r"needs triton-ascend: pip install"),
        ("triton.backends.ascend", r"`triton` is installed .* pip uninstall -y triton triton-ascend && pip install"),
    ],
)
def test_a_missing_part_of_the_stack_is_named_with_its_remedy(monkeypatch, absent, message):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find_spec(name))
    with pytest.raises(ImportError, match=message):
        importlib.reload(requirements)


def test_a_second_process_compiles_nothing(tmp_path):
    script = tmp_path / "again.py"
    script.write_text(
        textwrap.dedent("""
            import sys, torch, triton, triton.language as tl
            from npu_op_lab.compiler import driver, offline
            compiles = 0
            compile_linalg = driver.compile_linalg
            def counted(*args, **options):
                global compiles
                compiles += 1
                return compile_linalg(*args, **options)
            driver.compile_linalg = counted
            @triton.jit
            def double(X, B: tl.constexpr):
                at = tl.arange(0, B)
                tl.store(X + at, tl.load(X + at) * 2)
            with offline(sys.argv[1]) as launches:
                double[(1,)](torch.empty(64), B=64)
            print(compiles, launches[0].kernel.key)
        """)
    )
    runs = [subprocess.run([sys.executable, script, B4], check=True, capture_output=True, text=True).stdout.split() for _ in range(2)]
    assert [compiles for compiles, _ in runs] == ["1", "0"]
    assert runs[0][1] == runs[1][1]


def test_a_moved_file_gets_its_own_source_lines(tmp_path):
    source = """
        import torch, triton, triton.language as tl
        @triton.jit
        def double(X, B: tl.constexpr):
            at = tl.arange(0, B)
            tl.store(X + at, tl.load(X + at) * 2)
        double[(1,)](torch.empty(64), B=64)
    """
    seen = []
    for folder in ("a", "b"):
        file = tmp_path / folder / "kernel.py"
        file.parent.mkdir()
        file.write_text(textwrap.dedent(source))
        with offline(B4) as launches:
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "kernel"})
        seen.append({line.file for op in parse(launches[0].kernel.ir).walk() if (line := source_line(op))})
    assert seen == [{str(tmp_path / folder / "kernel.py")} for folder in ("a", "b")]


def test_a_tile_within_half_the_ub_stays_double_buffered():
    with offline(B4) as launches:
        _launch_rows(tile=2)
    found = report(launches[0].kernel)
    (loop,) = found.loops
    assert loop.hot and loop.double_buffered and found.double_buffered and not found.retries
    assert [(move.direction, move.bytes, move.piece_bytes, move.buffers) for move in loop.transfers] == [
        ("in", 2 * 4096 * 2, 2 * 4096 * 2, 2),
        ("out", 2 * 4096 * 2, 2 * 4096 * 2, 2),
    ]
    assert (loop.bytes_in, loop.bytes_out) == (16384, 16384)
    assert loop.vector_ops["vreduce"] == 1 and loop.scalar_syncs == 0 and not found.scalar_loops
    # Two input and two output buffers of bf16 and one of fp32 at the least; the SoC's UB at the most.
    assert 2 * 16384 + 32768 < found.ub_bytes <= 192 * 1024 and found.ub_share == found.ub_bytes / (192 * 1024)
    assert check(found) == []


def test_gathered_rows_have_slices_of_their_own():
    """The loop over the rows of a tile writes to another slice in each trip; what it waits for is the tile, of which there are two."""
    with offline(B4) as launches:
        gather_rows[(40,)](torch.empty(99, 64), torch.zeros(1280, dtype=torch.int64), torch.empty(1280, 64), 1280, 64, ROWS=16)
    found = report(launches[0].kernel)
    (loop,) = found.hot_loops
    assert (loop.depth, loop.trips) == (1, 16)
    assert [(move.bytes, move.buffers) for move in loop.transfers] == [(256, 2)]
    assert check(found) == []


def test_a_tile_over_half_the_ub_loses_it():
    with offline(B4) as launches:
        _launch_rows(tile=4)
    found = report(launches[0].kernel)
    assert not found.double_buffered and [move.buffers for move in found.loops[0].transfers] == [1, 1]
    violations = check(found)
    assert any("dropped double buffering" in violation for violation in violations)
    assert any("has one buffer" in violation and f"test_compiler.py:{_line_of(_rows, 'tl.load')}" in violation for violation in violations)


def test_a_retry_that_kept_double_buffering_is_no_violation():
    with offline(B4) as launches:
        _launch_rows(tile=2)
    found = report(launches[0].kernel)
    assert check(found) == check(type(found)(**{**vars(found), "retries": ("[NOTE] set enable-code-motion to false",)})) == []


def test_a_half_scalar_argument_is_found():
    """Triton passes Python floats as fp32; an NPU reads other run-time scalars wrong."""
    x = torch.empty(4096)
    with offline(B4) as launches:
        _scaled[(1,)](x, 1.5, BLOCK=4096)
    kernel = launches[0].kernel
    assert report(kernel).half_scalars == () and check(report(kernel)) == []
    found = report(replace(kernel, ir=kernel.ir.replace("f32", "f16")))
    assert found.half_scalars == ("f16",)
    assert any("run-time scalars of type f16" in violation for violation in check(found))


@pytest.mark.parametrize(("kernel", "line", "trips"), [(_cumulative, "tl.cumsum", 4095), (_gathered, "+ index", 4096)])
def test_a_scalar_loop_is_found(kernel, line, trips):
    x = torch.empty(16, 4096)
    index = [torch.empty(16, 4096, dtype=torch.int32)] if kernel is _gathered else []
    with offline(B4) as launches:
        kernel[(4,)](x, *index, torch.empty_like(x), 16, BN=4096)
    found = report(launches[0].kernel)
    (loop,) = found.scalar_loops
    assert (loop.line, loop.trips, loop.depth) == (f"test_compiler.py:{_line_of(kernel, line)}", trips, 1)
    assert (loop.scalar_loads, loop.scalar_stores) == (2, 1)
    assert any("scalar loop at" in violation and f"{trips} trips" in violation for violation in check(found))


def test_a_scalar_loop_that_runs_once_beside_the_hot_loop_is_allowed():
    x = torch.empty(16, 1024)
    with offline(B4) as launches:
        _gather_once[(4,)](x, torch.empty(1024, dtype=torch.int32), x, 16, BN=1024)
    found = report(launches[0].kernel)
    assert len(found.scalar_loops) == 1 and len(found.hot_loops) == 1
    assert check(found) == []


def test_a_scalar_synchronisation_per_trip_is_found():
    x = torch.empty(16, 4096)
    with offline(B4) as launches:
        _row_scalar[(4,)](x, torch.empty_like(x), 16, BN=4096)
    found = report(launches[0].kernel)
    assert found.hot_loops[0].scalar_syncs > 0 and not found.scalar_loops
    assert any("between the scalar unit and other pipes per trip" in violation for violation in check(found))


def test_nested_loops_are_reported_each_and_the_innermost_that_loads_is_hot():
    x = torch.empty(64, 4096)
    with offline(B4) as launches:
        _column_sums[(4,)](x, torch.empty(4096), 64, 4096, BN=1024)
    found = report(launches[0].kernel)
    outer, inner = found.loops
    assert [(loop.depth, loop.hot, loop.bytes_in, loop.bytes_out) for loop in (outer, inner)] == [(0, False, 0, 4096), (1, True, 4096, 0)]
    assert inner.line == f"test_compiler.py:{_line_of(_column_sums, 'for row in')}" and inner.vector_ops == {"vadd": 1}
    assert check(found) == []


def test_a_piece_ends_where_memory_does():
    x = torch.empty(64, 4096)
    with offline(B4) as launches:
        _column_block[(4,)](x, torch.empty_like(x), 64, 4096, BM=8, BN=128)
    moves = report(launches[0].kernel).loops[0].transfers
    assert [(move.bytes, move.piece_bytes) for move in moves] == [(8 * 128 * 4, 128 * 4)] * 2


def test_a_masked_width_counts_only_what_is_moved():
    with offline(B4) as launches:
        _launch_rows(cols=1000, block=1024)
    assert [move.bytes for move in report(launches[0].kernel).loops[0].transfers] == [2 * 1000 * 2] * 2


def test_operations_carry_the_line_of_the_helper_they_come_from():
    x = torch.empty(512)
    with offline(B4) as launches:
        _helped[(1,)](x, torch.empty_like(x), BN=512)
    lines = {name_of(op): source_line(op) for op in parse(launches[0].kernel.ir).walk()}
    assert lines["hivm.hir.vexp"] == SourceLine(__file__, _line_of(_twice, "tl.exp"))
    assert lines["hivm.hir.load"] == SourceLine(__file__, _line_of(_helped, "tl.load"))


def test_source_lines_do_not_change_the_code(tmp_path, monkeypatch):
    plain = []
    for disabled in (False, True):
        monkeypatch.setitem(AscendBackend.add_stages.__globals__, "_is_debug_line_info_disabled", lambda disabled=disabled: disabled)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(disabled)))
        _rows.cache.clear()
        with offline(B4) as launches:
            _launch_rows()
        plain.append(str(parse(launches[0].kernel.ir)))  # printed without locations
    assert "hivm.hir.vreduce" in plain[0] and plain[0] == plain[1]
