from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from npu_op_runtime.rotary_ops import register_rotation

_numbers = itertools.count()


@pytest.fixture
def scaling(monkeypatch):
    """A "rotation" that multiplies by the angle, backward by its negative; kept launches multiply by ten times that."""
    calls = SimpleNamespace(checked=0, found=[], launched=[])

    def check(q, k, angle, option, inplace):
        calls.checked += 1
        if option not in (1, 2) or type(option) is not int:
            raise ValueError("option must be 1 or 2")

    def rotation_of(*, heads, inverse, angles, **_):
        calls.found.append(inverse)

        def run(q, k, q_out, k_out, angle):
            calls.launched.append(inverse)
            for x, out in ((q, q_out), (k, k_out)):
                if x is not None:
                    out.copy_(x * angle * (-10 if inverse else 10))

        return run

    def formula(q, k, angle, option):
        return q * angle, None if k is None else k * angle

    monkeypatch.setattr("npu_op_runtime.rotary_ops.in_cuda_form", lambda: True)
    monkeypatch.setattr("npu_op_runtime.rotary_ops.rotation_of", rotation_of)
    apply = register_rotation(
        f"npu_op_test_rotation{next(_numbers)}", "Tensor angle, int option", check=check, formula=formula, vendor=formula,
        rotation=lambda q, angle, option: {"angles": (angle,)}, transposed=lambda angle, option: (-angle, option),
    )  # fmt: skip

    def call(q, k, angle, option=1, *, inplace=False, implementation=None):
        return apply(q, k, angle, option, inplace=inplace, implementation=implementation)

    return call, calls


def _heads(**options):
    return torch.ones(1, 2, 3, 4, **options)


_ANGLE = torch.full((4,), 2.0)


def test_the_like_of_a_call_goes_straight_to_its_launch(scaling):
    call, calls = scaling
    for _ in range(3):
        q, k = call(_heads(), _heads(), _ANGLE.clone())
        assert q.unique().tolist() == k.unique().tolist() == [20.0]
    assert (calls.checked, calls.found, calls.launched) == (1, [False], [False] * 3)


def test_backward_keeps_a_launch_of_its_own(scaling):
    call, calls = scaling
    for _ in range(3):
        q, k = _heads(requires_grad=True), _heads(requires_grad=True)
        sum(x.sum() for x in call(q, k, _ANGLE)).backward()
        # Gradients of a sum are expanded: not the like of the next.
        assert q.grad.unique().tolist() == k.grad.unique().tolist() == [-20.0]
    assert calls.checked == 1 and calls.found == [False, True] and calls.launched == [False, True] * 3
    k = _heads(requires_grad=True)
    call(_heads(), k, _ANGLE)[1].sum().backward()
    assert k.grad.unique().tolist() == [-20.0]


@pytest.mark.parametrize(
    "other",
    [
        {"q": torch.ones(1, 2, 3, 4, dtype=torch.bfloat16)},
        {"q": torch.ones(1, 2, 4, 3).mT},
        {"q": torch.ones(1, 2, 3, 4, requires_grad=True)},
        {"q": torch.ones(1, 2, 5, 4)},
        {"k": None},
        {"angle": torch.ones(4, dtype=torch.bfloat16)},
        {"angle": torch.ones(4, requires_grad=True)},
        {"option": 2},
    ],
    ids=str,
)
def test_whatever_a_check_or_a_launch_may_depend_on_is_told_apart(scaling, other):
    call, calls = scaling
    given = {"q": _heads(), "k": _heads(), "angle": _ANGLE}
    call(**given)
    call(**given | other)
    assert (calls.checked, len(calls.found)) == (2, 2)


@pytest.mark.parametrize("option", [1.0, True, [1]], ids=str)
def test_an_equal_argument_of_another_type_is_checked(scaling, option):
    call, _ = scaling
    call(_heads(), None, _ANGLE)
    with pytest.raises(ValueError, match="option must be 1 or 2"):
        call(_heads(), None, _ANGLE, option)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "q",
    [_heads().as_subclass(Subclass), torch.full((1, 2, 3, 4), -1j).conj().imag, torch.ones(0, 2, 3, 4)],
    ids=["subclass", "negative", "empty"],
)
def test_a_tensor_that_is_more_or_less_than_its_memory_has_no_kept_launch(scaling, q):
    call, calls = scaling
    call(q, None, _ANGLE)
    call(q, None, _ANGLE)
    assert calls.found == []


def test_a_negative_is_not_taken_for_the_plain_tensor_before_it(scaling):
    call, calls = scaling
    negative = torch.full((1, 2, 3, 4), -1j).conj().imag
    assert negative.is_neg()
    call(torch.zeros_like(torch.view_as_real(torch.full((1, 2, 3, 4), 1j)))[..., 1], None, _ANGLE)
    assert call(negative, None, _ANGLE)[0].unique().tolist() == [2.0]
    assert calls.launched == [False]


def test_a_zero_tensor_is_not_taken_for_the_plain_tensor_before_it(scaling):
    call, calls = scaling
    call(_heads(), None, _ANGLE)
    assert call(torch._efficientzerotensor((1, 2, 3, 4)), None, _ANGLE)[0].unique().tolist() == [0.0]
    assert calls.launched == [False]


@pytest.mark.parametrize("inplace", [None, 0, 0.0], ids=str)
def test_inplace_is_checked_whatever_passed_before(scaling, inplace):
    call, calls = scaling
    call(_heads(), None, _ANGLE)
    call(_heads(), None, _ANGLE, inplace=inplace)
    assert calls.checked == 2


def test_whoever_observes_sees_the_op(scaling):
    call, calls = scaling
    call(_heads(), None, _ANGLE)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        assert call(_heads(), None, _ANGLE)[0].unique().tolist() == [2.0]
    assert any("rotate" in event.key for event in profiled.key_averages())
    assert calls.launched == [False]


def test_in_place_and_named_implementations_keep_nothing(scaling):
    call, calls = scaling
    q = _heads()
    assert call(q, None, _ANGLE, inplace=True)[0] is q and q.unique().tolist() == [2.0]
    assert call(_heads(), None, _ANGLE, implementation="eager")[0].unique().tolist() == [2.0]
    assert calls.found == [] and calls.checked == 2


def test_what_is_kept_is_bounded(scaling, monkeypatch):
    monkeypatch.setattr("npu_op_runtime.rotary_ops._MAX_KEPT", 4)
    call, calls = scaling
    for tokens in range(1, 12):
        call(torch.ones(1, 2, tokens, 4), None, _ANGLE)
    call(torch.ones(1, 2, 1, 4), None, _ANGLE)
    call(torch.ones(1, 2, 11, 4), None, _ANGLE)
    assert len(calls.found) == 12
