"""Values of the emulator: whole kernels against PyTorch, conversions and reductions against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_op_lab.emulator import OutOfBounds, emulate
from npu_op_lab.emulator.dtypes import to_float, to_int
from npu_op_lab.emulator.memory import UB, View, read_bits, write_bits
from npu_op_lab.emulator.program import MemRefType, Op, Value
from npu_op_lab.emulator.vector import compute, tree_reduce

from . import emulated_kernels as kernels

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def _rms(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_rows", "n_cols", "rows"), [(64, 4096, 2), (7, 1000, 2), (5, 123, 4), (3, 64, 1)])
def test_rmsnorm_equals_pytorch(dtype: torch.dtype, n_rows: int, n_cols: int, rows: int) -> None:
    x = torch.randn(n_rows, n_cols, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = torch.full_like(x, torch.nan)
    with emulate("Ascend910B4") as run:
        kernels.rms_rows[(40,)](x, y, n_rows, n_cols, ROWS=rows, BLOCK=-(-n_cols // 64) * 64)
    gold = _rms(x)
    # One rounding of the result, and fp32 arithmetic before it.
    allowed = gold.abs() * (torch.finfo(dtype).eps / 2 + 8 * torch.finfo(torch.float32).eps) + 1e-7
    assert ((y.double() - gold).abs() <= allowed).all()
    assert run.findings == []


def test_values_do_not_depend_on_the_soc_and_repeat_bitwise() -> None:
    x = torch.randn(64, 512)
    results = []
    for soc in ("Ascend910B4", "Ascend910_9391", "Ascend910B4"):
        y = torch.empty_like(x)
        with emulate(soc):
            kernels.rms_rows[(40,)](x, y, 64, 512, ROWS=4, BLOCK=512)
        results.append(y)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_strided_tensor_is_read_in_its_own_storage() -> None:
    wide = torch.randn(3000)
    y = torch.zeros(1000)
    with emulate():
        kernels.double[(4,)](wide[100:1100], y, 1000, BLOCK=512)
    assert torch.equal(y, wide[100:1100] * 2)


def test_what_a_program_does_not_write_stays() -> None:
    x, y = torch.randn(1000), torch.full((1100,), 7.0)
    with emulate():
        kernels.double[(4,)](x, y, 1000, BLOCK=512)
    assert torch.equal(y[:1000], x * 2)
    assert (y[1000:] == 7).all()


def test_atomic_add_sums_over_programs() -> None:
    x, y = torch.randint(-8, 8, (6, 512)).float(), torch.zeros(512)
    with emulate() as run:
        kernels.all_add_to_row_0[(6,)](x, y, BLOCK=512)
    assert torch.equal(y, x.sum(0))
    assert run.findings == []


def test_timing_only_leaves_results_alone() -> None:
    x, y = torch.randn(1000), torch.full((1000,), 7.0)
    with emulate(values=False) as run:
        kernels.double[(4,)](x, y, 1000, BLOCK=512)
    assert (y == 7).all()
    assert run.seconds > 0


def test_a_cube_kernel_is_refused_by_name() -> None:
    a = torch.randn(64, 64, dtype=torch.float16)
    with pytest.raises(NotImplementedError, match="product.*only vector kernels"), emulate():
        kernels.product[(1,)](a, a, torch.empty(64, 64), SIZE=64)


def test_out_of_bounds_names_line_and_argument() -> None:
    with (
        pytest.raises(OutOfBounds, match=r"past_the_end at emulated_kernels.py:\d+: hivm.hir.load.*argument 0, whose storage has 4000"),
        emulate(),
    ):
        kernels.past_the_end[(1,)](torch.randn(1000), torch.empty(1024), BLOCK=1024)


_MODES = st.sampled_from(["rint", "round", "floor", "ceil", "trunc", "odd"])
_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-60000, max_value=60000)


@given(value=_FLOATS, mode=_MODES, dtype=st.sampled_from(["f16", "bf16"]))
def test_conversion_to_16_bits_is_exact(value: float, mode: str, dtype: str) -> None:
    got = to_float(np.array([value], np.float32), dtype, mode)[0]
    below, above = _neighbours(value, dtype)
    exact = Fraction(value)
    if Fraction(float(below)) == exact:
        assert float(got) == value
        return
    toward_zero, away = (below, above) if value > 0 else (above, below)
    to_below, to_above = exact - Fraction(float(below)), Fraction(float(above)) - exact
    nearest = below if to_below < to_above else above
    tie = to_below == to_above
    expected = {
        "floor": below,
        "ceil": above,
        "trunc": toward_zero,
        "odd": below if _bits(below) & 1 else above,
        "rint": nearest if not tie else (above if _bits(below) & 1 else below),
        "round": nearest if not tie else away,
    }[mode]
    assert float(got) == float(expected)


def _neighbours(value: float, dtype: str) -> tuple[np.generic, np.generic]:
    """The largest value of `dtype` not above `value` and the smallest not below."""
    kind = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}[dtype]
    every = np.arange(0, 0x10000, dtype=np.uint32).astype(np.uint16).view(kind)
    numbers = every.astype(np.float32)
    with np.errstate(invalid="ignore"):
        below, above = np.where(numbers <= value, numbers, -np.inf), np.where(numbers >= value, numbers, np.inf)
    return every[np.nanargmax(below)], every[np.nanargmin(above)]


def _bits(value: np.generic) -> int:
    return int(np.array([value]).view(np.uint16)[0])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("rint", [-2, -2, 0, 0, 2, 2, 3]),
        ("round", [-3, -2, -1, 1, 2, 3, 3]),
        ("floor", [-3, -2, -1, 0, 1, 2, 3]),
        ("ceil", [-2, -1, 0, 1, 2, 3, 4]),
        ("trunc", [-2, -1, 0, 0, 1, 2, 3]),
    ],
)
def test_conversion_to_integers_rounds_as_named(mode: str, expected: list[int]) -> None:
    values = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.2], np.float32)
    assert to_int(values, "i32", mode).tolist() == expected


@pytest.mark.parametrize("mode", ["rint", "round", "floor", "ceil", "trunc"])
def test_fp32_to_itself_rounds_to_integers(mode: str) -> None:
    # The value below one half: adding a half to it in fp32 gives 1.
    values = np.array([-2.5, -0.5, 0.5, 1.5, np.nextafter(np.float32(0.5), np.float32(0)), 3e38], np.float32)
    exact = {"rint": round, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc}
    exact["round"] = lambda value: int(math.copysign(math.floor(abs(value) + Fraction(1, 2)), value))
    assert to_float(values, "f32", mode).tolist() == [exact[mode](Fraction(float(value))) for value in values]


def test_floor_ceil_and_sine_of_a_tile_and_of_a_number() -> None:
    x = torch.tensor([-7.99, -2.5, -0.5, 0.0, 0.5, 0.999, 2.5, 123.4])
    rounded, first = torch.empty(3, 8), torch.empty(1)
    with emulate() as run:
        kernels.floor_ceil_sine[(1,)](x, rounded, first, BLOCK=8)
    assert torch.equal(rounded[0], x.floor())
    assert torch.equal(rounded[1], x.ceil())
    torch.testing.assert_close(rounded[2], x.sin(), rtol=1e-5, atol=1e-5)
    assert first.item() == -8.0
    assert run.findings == []


def test_64_bit_integers_wrap() -> None:
    x = torch.tensor([1, -3, 2**40, 2**62, 2**63 - 1, -(2**63)] + [7] * 58)
    y, hashed = torch.empty_like(x), torch.empty(5, dtype=torch.int64)
    with emulate() as run:
        kernels.wrap_64[(5,)](x, y, hashed, BLOCK=64)
    assert torch.equal(y, x * 3 + 1)
    seeds = torch.arange(5) + 12345
    assert torch.equal(hashed, (seeds * 6364136223846793005 + 1442695040888963407) >> 33)
    assert run.findings == []


def test_integers_that_do_not_fit_32_bits_wrap() -> None:
    x = torch.tensor([-100, 2**31 - 1, 2**31, -(2**31) - 1, 2**40 + 5] + [7] * 59)
    y = torch.empty(64, dtype=torch.int32)
    with emulate() as run:
        kernels.narrow_64[(1,)](x, y, BLOCK=64)
    assert torch.equal(y, x.to(torch.int32))
    assert run.findings == []


@pytest.mark.parametrize("n", [8, 100])
def test_a_strided_load_that_is_stored_strided(n: int) -> None:
    x, y = torch.arange(256.0), torch.full((384,), -1.0)
    with emulate() as run:
        kernels.stride_2_to_3[(1,)](x, y, n, BLOCK=128)
    expected = torch.full((384,), -1.0)
    expected[: 3 * n : 3] = x[: 2 * n : 2]
    assert torch.equal(y, expected)
    assert run.findings == []


def test_bits_of_a_padded_tile_lie_where_its_rows_do() -> None:
    bits = np.random.default_rng(0).random((3, 13)) < 0.5
    UB.poison()
    write_bits(View(UB, 64, 0, (3, 13), (256, 1), "i1"), bits)
    for row in range(3):
        assert np.array_equal(read_bits(View(UB, 64 + 32 * row, 0, (13,), (1,), "i1")), bits[row])
        assert read_bits(View(UB, 64 + 32 * row, 8, (8,), (1,), "i1"))[5:].all()  # what shares the last byte is kept
    assert np.array_equal(read_bits(View(UB, 64, 256, (2, 13), (256, 1), "i1")), bits[1:])
    with pytest.raises(NotImplementedError, match="bits of UB within a byte"):
        read_bits(View(UB, 64, 4, (2, 4), (4, 1), "i1"))


def test_operands_that_do_not_fit_are_not_stretched() -> None:
    ub = [View(UB, 1024 * at, 0, (size,), (1,), "f32") for at, size in enumerate((8, 1, 8))]
    types = [Value(at, MemRefType("f32", view.sizes, view.strides, 0, "ub")) for at, view in enumerate(ub)]
    attrs = {"operandSegmentSizes": [2, 1, 0]}
    add = compute(Op("hivm.hir.vadd", [types[0], types[0], types[1]], [], attrs, [], "kernel.py:3"))
    with pytest.raises(NotImplementedError, match=r"hivm.hir.vadd with operands of sizes \(8,\) and \(8,\).* \(1,\) at kernel.py:3"):
        add((ub[0], ub[2], ub[1]))
    copy = compute(Op("hivm.hir.copy", [types[1], types[0]], [], {}, [], "kernel.py:4"))
    with pytest.raises(NotImplementedError, match=r"hivm.hir.copy with a result of sizes \(1,\).* \(8,\) at kernel.py:4"):
        copy((ub[1], ub[0]))


def test_conversion_to_integers_saturates() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 3e9, -3e9], np.float32)
    assert to_int(values, "i32", "rint").tolist() == [2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31)]
    assert to_int(values, "i64", "rint").tolist() == [2**63 - 1, -(2**63), 0, 3_000_000_000, -3_000_000_000]


@given(st.integers(1, 70), st.integers(0, 1))
def test_tree_sum_of_integers_is_the_sum(length: int, axis: int) -> None:
    values = np.arange(3 * length, dtype=np.int32).reshape((length, 3) if axis == 0 else (3, length))
    assert np.array_equal(tree_reduce(values, axis, np.add), values.sum(axis, keepdims=True))


def test_bits_of_a_tile_as_another_type_and_shifts_equal_pytorch() -> None:
    pairs = torch.randn(128, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    low, swapped = torch.empty(128), torch.empty(128, dtype=torch.int32)
    with emulate("Ascend910B4") as run:
        kernels.part_words[(1,)](pairs.view(torch.int32), low, swapped, BLOCK=128)
    assert torch.equal(low, pairs[:, 0].float())
    assert torch.equal(swapped.view(torch.bfloat16).view(128, 2), pairs.flip(1))
    assert run.findings == []


def test_a_shift_to_the_right_that_may_round_is_refused() -> None:
    x = torch.arange(64, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"vshr that drops bits other than zero at .* is not covered"), emulate("Ascend910B4"):
        kernels.shift_right[(1,)](x, torch.empty_like(x), BLOCK=64)
    y = torch.empty_like(x)
    with emulate("Ascend910B4"):
        kernels.shift_right[(1,)](x * 8, y, BLOCK=64)
    assert torch.equal(x, y)
