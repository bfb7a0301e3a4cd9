from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_op_lab.oracle import check
from npu_op_lab.passes import evaluate, named, reference_results, with_dims
from npu_op_runtime.spec import DTYPES

from .toy import CASES, toy


class Loss(NamedTuple):
    loss: torch.Tensor
    z_loss: torch.Tensor | None


def verdict(actual, base, gold, terms=1):
    return check("y", actual, base, torch.as_tensor(gold, dtype=torch.float64), terms)


def test_twice_the_error_of_pytorch_and_one_rounding_is_the_limit():
    gold = torch.tensor([1.0, 0.5], dtype=torch.float64)
    base = gold.to(torch.float32) + torch.tensor([2**-10, 0])
    eps = torch.finfo(torch.float32).eps
    limit = 2 * 2**-10 + eps
    assert verdict(gold.float() + torch.tensor([limit, 0]), base, gold).passed
    failed = verdict(gold.float() + torch.tensor([limit + eps, 0]), base, gold)
    assert not failed.passed
    assert failed.max_allowed == pytest.approx(limit)
    assert "max error 0.00195, allowed 0.00195 (eager 0.000977)" in failed.reason
    assert "worst at (0,)" in failed.reason


def test_many_small_errors_fail_by_their_rms():
    """PyTorch errs in one element, the result by as much in all."""
    gold = torch.ones(1000, dtype=torch.float64)
    base = gold.float()
    base[0] += 1e-3
    failed = verdict(gold.float() + 1e-3, base, gold)
    assert failed.reason.startswith("RMS error")


def test_rms_sees_the_elements_beside_a_dominant_one():
    """The gradient of a cross-entropy: one element of 1, the rest of 1/V; zeros in their place are within the maximum's limit."""
    gold = torch.full((4, 4096), 1 / 4096, dtype=torch.float64)
    gold[:, 7] = -1
    base = gold.to(torch.bfloat16)
    wrong = torch.where(gold == -1, gold, 0).to(torch.bfloat16)
    assert verdict(wrong, base, gold).reason.startswith("RMS error")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_rounded_gold_passes_whatever_pytorch_gives(dtype):
    gold = torch.randn(50, 30, dtype=torch.float64)
    right = gold.to(dtype)
    assert verdict(right, right, gold).passed


def test_zero_gold_of_an_exact_base_asks_for_zero():
    gold, zero = torch.zeros(8, dtype=torch.float64), torch.zeros(8)
    assert verdict(zero, zero, gold).passed
    assert not verdict(zero + 1e-30, zero, gold).passed


def test_empty_tensors_pass_on_shape_and_dtype():
    gold, empty = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, 4)
    assert verdict(empty, empty, gold).passed
    assert verdict(torch.zeros(4, 0), empty, gold).reason == "shape (4, 0) came, the reference gives (0, 4)"
    assert verdict(empty.half(), empty, gold).reason == "dtype torch.float16 came, the reference gives torch.float32"


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "-inf"])
def test_masks_of_nan_and_infinity_must_be_equal(special):
    gold = torch.tensor([1.0, special, 2.0])
    assert verdict(gold, gold, gold).passed
    for wrong in (torch.tensor([1.0, 3.0, 2.0]), torch.tensor([special, special, 2.0]), torch.tensor([1.0, 2.0, special])):
        assert not verdict(wrong, gold, gold).passed


def test_overflow_is_infinity_where_the_dtype_overflows():
    gold, base = torch.tensor([70000.0, 1.0]), torch.tensor([math.inf, 1.0]).half()
    assert verdict(base, base, gold).passed
    assert not verdict(torch.tensor([65504.0, 1.0]).half(), base, gold).passed


def test_an_eager_overflow_allows_nothing():
    """PyTorch overflows in an intermediate: its infinity must not become the allowance."""
    gold, base = torch.tensor([1.0, 2.0]), torch.tensor([math.inf, 2.0])
    assert verdict(gold.float(), base, gold).passed
    assert not verdict(torch.tensor([1.5, 2.0]), base, gold).passed


def test_integers_must_be_equal():
    gold = torch.tensor([1, 2, 3])
    assert check("count", gold, gold, gold).passed
    assert check("count", gold + torch.tensor([0, 1, 1]), gold, gold).reason == "2 of 3 elements differ"


def test_complex_results_are_judged_by_their_parts():
    gold = torch.complex(torch.randn(20, dtype=torch.float64), torch.randn(20, dtype=torch.float64))
    right = gold.to(torch.complex64)
    assert check("y", right, right, gold).passed
    assert not check("y", right.conj(), right, gold).passed


def test_none_is_right_only_where_the_reference_gives_none():
    tensor = torch.ones(2)
    assert check("dw", None, None, None).passed
    assert not check("dw", tensor, None, None).passed
    assert not check("dw", None, tensor, tensor.double()).passed


@given(
    power=st.integers(-6, 6),
    rows=st.integers(0, 20),
    width=st.integers(1, 50),
    dtype=st.sampled_from(list(DTYPES.values())),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_the_verdict_does_not_depend_on_scale(power, rows, width, dtype, seed):
    """A power of two on every tensor changes nothing."""
    scale = 2.0**power
    generator = torch.Generator().manual_seed(seed)
    gold = torch.randn(rows, width, generator=generator, dtype=torch.float64).clamp(min=2**-6)  # away from subnormals of fp16
    noise = torch.randn(2, rows, width, generator=generator, dtype=torch.float64) * torch.finfo(dtype).eps
    base, actual = ((gold * (1 + noise[i])).to(dtype) for i in (0, 1))
    assert verdict(actual, base, gold).passed == verdict(actual * scale, base * scale, gold * scale).passed


def test_a_reference_that_leaves_fp64_is_refused():
    spec = replace(toy("none"), reference=lambda x, weight=None, eps=1e-6: x.float().to(x.dtype) * weight)
    with pytest.raises(
        TypeError, match=r"reference of toy must compute in float64 for float64 inputs \(aten._to_copy.default gave torch.float32\)"
    ):
        reference_results(spec, CASES[0])


def test_evaluate_names_outputs_and_gradients():
    assert [verdict.name for verdict in evaluate(toy("none"), CASES[0])] == ["output", "grad of x", "grad of weight"]
    assert [verdict.name for verdict in evaluate(toy("none"), CASES[0], frozen=["x"])] == ["output", "grad of weight"]


def test_evaluate_judges_any_function():
    verdicts = evaluate(toy("none"), CASES[0], function=lambda x, weight, eps=1e-6: x * weight)
    assert [verdict.passed for verdict in verdicts] == [False, False, False]


def test_a_result_of_another_shape_is_named_before_its_backward():
    verdicts = evaluate(toy("none"), CASES[0], function=lambda x, weight, eps=1e-6: x[:-1] * weight)
    assert verdicts[0].reason == "shape (23, 64) came, the reference gives (24, 64)"


def test_a_detached_result_has_no_gradient():
    verdicts = evaluate(toy("none"), CASES[0], function=lambda x, weight, eps=1e-6: toy("none").reference(x, weight).detach())
    assert [verdict.passed for verdict in verdicts] == [True, False, False]


def test_the_largest_tensor_gives_the_terms_of_a_sum():
    reference = reference_results(toy("none"), CASES[0])
    assert (reference.terms("output"), reference.terms("grad of weight")) == (1, 24)


def test_outputs_are_named():
    one, two = torch.ones(1), torch.ones(2)
    assert named(one) == {"output": one}
    assert named((one, two)) == {"output 0": one, "output 1": two}
    assert named(Loss(one, None)) == {"loss": one, "z_loss": None}


def test_few_elements_are_judged_over_several_seeds():
    """Two elements of fp32: what eager errs there by luck must not decide; a wrong element still fails."""
    tiny = with_dims(CASES[0], T=1, H=2)
    seeds = []

    def counted(x, weight, eps=1e-6):
        seeds.append(float(x[0, 0]))
        return toy("none").function(x, weight, eps)

    assert all(verdict.passed for verdict in evaluate(toy("none"), tiny, function=counted))
    assert len(set(seeds)) == 8
    wrong = evaluate(toy("none"), tiny, function=lambda x, weight, eps=1e-6: toy("none").function(x, weight, eps) * (1 + 1e-6))
    assert [verdict.passed for verdict in wrong] == [False, False, False]


def test_a_missing_result_of_few_elements_is_named():
    verdicts = evaluate(toy("none"), with_dims(CASES[0], T=1, H=1), function=lambda x, weight, eps=1e-6: (x * weight).detach())
    assert [verdict.reason for verdict in verdicts[1:]] == ["None came where the reference gives a tensor"] * 2
