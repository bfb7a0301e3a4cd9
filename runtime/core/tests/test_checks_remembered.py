from __future__ import annotations

import pytest
import torch

from npu_op_runtime import checks
from npu_op_runtime.checks import remembered


@pytest.fixture
def counted():
    """A check that refuses fp64, remembered, and the calls that reached it."""
    reached = []

    @remembered
    def check(x, flag):
        reached.append((x, flag))
        if x.dtype == torch.float64:
            raise TypeError("x must not be fp64")

    return check, reached


def test_the_like_of_what_passed_is_not_checked_again(counted):
    check, reached = counted
    for _ in range(3):
        check(torch.empty(2, 3), True)
    assert len(reached) == 1


@pytest.mark.parametrize(
    "x", (torch.empty(3, 2), torch.empty(2, 3, dtype=torch.bfloat16), torch.empty(2, 3, device="meta"), torch.empty(2, 3).requires_grad_())
)
def test_whatever_a_check_may_depend_on_is_told_apart(counted, x):
    check, reached = counted
    check(torch.empty(2, 3), True)
    check(x, True)
    check(torch.empty(2, 3), False)
    assert len(reached) == 3


def test_what_is_equal_but_of_another_type_is_told_apart(counted):
    check, reached = counted
    for flag in (1, True, 1.0):
        check(torch.empty(2, 3), flag)
    assert len(reached) == 3


def test_what_was_refused_is_refused_again(counted):
    check, _ = counted
    for _ in range(2):
        with pytest.raises(TypeError, match="x must not be fp64"):
            check(torch.empty(2, 3, dtype=torch.float64), True)


def test_what_has_no_hash_is_checked_every_time(counted):
    check, reached = counted
    for _ in range(2):
        check(torch.empty(2, 3), [1])
    assert len(reached) == 2


def test_what_is_remembered_is_bounded(counted, monkeypatch):
    monkeypatch.setattr(checks, "_MAX_PASSED", 2)
    check, reached = counted
    for rows in (1, 2, 3, 3, 1):
        check(torch.empty(rows), True)
    assert [len(x) for x, _ in reached] == [1, 2, 3, 1]


def test_what_is_remembered_is_bounded_though_threads_went_beyond(counted, monkeypatch):
    check, reached = counted
    for rows in (1, 2, 3):
        check(torch.empty(rows), True)
    monkeypatch.setattr(checks, "_MAX_PASSED", 2)
    for rows in (4, 3):
        check(torch.empty(rows), True)
    assert [len(x) for x, _ in reached] == [1, 2, 3, 4, 3]
