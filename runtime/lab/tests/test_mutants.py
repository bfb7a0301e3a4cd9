"""The oracle rejects results that are wrong in the ways of kernels, at realistic sizes, and accepts an honest order of summation."""

from __future__ import annotations

import pytest
import torch

from npu_op_lab.mutants import MUTANTS, last_program_wins, low_precision_sum, running_sum, transposed
from npu_op_lab.oracle import check
from npu_op_runtime.spec import DTYPES

ROWS = (64, 1024, 16384)
WIDTH = 128
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def rms_norm(x):
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def normalised(dtype, rows, width=WIDTH):
    """The output of RMSNorm by PyTorch and in fp64."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(dtype)
    return rms_norm(x), rms_norm(x.double())


def weight_gradient(dtype, rows):
    """dweight of RMSNorm: its fp32 terms by row, the sum by PyTorch and in fp64."""
    generator = torch.Generator().manual_seed(rows)
    x, dy = (torch.randn(rows, WIDTH, generator=generator).to(dtype) for _ in range(2))
    terms = dy.float() * rms_norm(x.float())
    return terms, (dy * rms_norm(x)).sum(0), (dy.double() * rms_norm(x.double())).sum(0)


@dtypes
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutants_of_an_output_are_rejected(mutant, dtype):
    base, gold = normalised(dtype, 512)
    right = gold.to(dtype)
    assert check("y", right, base, gold).passed
    assert not check("y", mutant(right), base, gold).passed


@dtypes
def test_eight_elements_lost_of_65536_are_noticed(dtype):
    base, gold = normalised(dtype, 512)
    wrong = gold.to(dtype)
    wrong[-1, -8:] = 0
    assert not check("y", wrong, base, gold).passed


@dtypes
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("mutant", [name for name in MUTANTS if name != "scaled"])
def test_mutants_of_a_weight_gradient_are_rejected(mutant, rows, dtype):
    """`scaled`, by eight roundings, is what a running sum over many rows may lose: the next test scales by more."""
    terms, base, gold = weight_gradient(dtype, rows)
    right = gold.to(dtype)
    assert check("dw", right, base, gold, rows).passed
    assert not check("dw", MUTANTS[mutant](right), base, gold, rows).passed


@dtypes
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda terms, dtype: last_program_wins(terms, 40),
        lambda terms, dtype: terms[:-8].sum(0),
        lambda terms, dtype: terms.sum(0) * (1 + 8 * max(torch.finfo(dtype).eps, 2**-20 * len(terms) ** 0.5)),
    ],
    ids=["last-program-wins", "last-tile-lost", "scaled"],
)
def test_wrong_sums_are_rejected(wrong, rows, dtype):
    terms, base, gold = weight_gradient(dtype, rows)
    assert not check("dw", wrong(terms, dtype).to(dtype), base, gold, rows).passed


@pytest.mark.parametrize(
    ("dtype", "kept", "rows"),
    [
        (torch.float32, torch.float16, 64),
        (torch.float32, torch.bfloat16, 64),
        (torch.float16, torch.float16, 1024),
        (torch.float16, torch.bfloat16, 64),
        (torch.bfloat16, torch.bfloat16, 1024),
        # fp16 is finer than bf16: it takes this many rows for its running sum to be worse.
        (torch.bfloat16, torch.float16, 16384),
    ],
)
def test_sums_kept_in_low_precision_are_rejected(dtype, kept, rows):
    terms, base, gold = weight_gradient(dtype, rows)
    assert not check("dw", low_precision_sum(terms, kept).to(dtype), base, gold, rows).passed


@dtypes
def test_a_mean_square_kept_in_fp16_is_rejected(dtype):
    base, gold = normalised(dtype, 64, 4096)
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(64)).to(dtype)
    mean = low_precision_sum(x.float().square().T, torch.float16).float() / 4096
    wrong = (x.float() * torch.rsqrt(mean + 1e-6)[:, None]).to(dtype)
    assert not check("y", wrong, base, gold).passed


@dtypes
@pytest.mark.parametrize("rows", ROWS)
def test_honest_orders_of_summation_are_accepted(rows, dtype):
    """In order, in chunks by program, pairwise."""
    terms, base, gold = weight_gradient(dtype, rows)
    by_program = torch.stack([running_sum(chunk) for chunk in terms.tensor_split(40)])
    for total in (running_sum(terms), running_sum(by_program), terms.sum(0), running_sum(terms.flip(0))):
        assert check("dw", total.to(dtype), base, gold, rows).passed


def test_a_running_sum_needs_its_allowance():
    """Without it, as if the result were no sum, PyTorch's blocked sum would be the measure, which no running sum meets."""
    terms, base, gold = weight_gradient(torch.float32, 16384)
    assert not check("dw", running_sum(terms), base, gold, terms=1).passed


def test_a_vector_is_transposed_as_a_matrix():
    assert transposed(torch.arange(6)).tolist() == [0, 3, 1, 4, 2, 5]
