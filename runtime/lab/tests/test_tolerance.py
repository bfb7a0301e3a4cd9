from __future__ import annotations

import pytest
import torch
from rich.console import Console

from npu_op_lab import cli, operators
from npu_op_lab.commands import tolerance as command
from npu_op_lab.execution import EAGER
from npu_op_lab.passes import prepared, reference_results
from npu_op_lab.tolerance import RTOL, summary

from .toy import CASES, KERNELS, toy

BF16 = next(case for case in CASES if case.dtype == "bfloat16")


def test_atol_is_the_smallest_that_assert_close_takes():
    reference = reference_results(toy("off by a row"), BF16)
    actual = prepared(toy("off by a row"), BF16, reference.upstream).run(toy("off by a row").function)
    (row,) = (row for row in summary(toy("off by a row"), BF16, KERNELS) if row.tensor == "output")
    result, gold = actual["output"].double(), reference.gold["output"]
    torch.testing.assert_close(result, gold, rtol=RTOL, atol=row.atol * (1 + 1e-12))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(result, gold, rtol=RTOL, atol=row.atol * (1 - 1e-9))


def test_a_row_for_each_output_and_gradient():
    rows = summary(toy("none"), BF16, EAGER)
    assert [row.tensor for row in rows] == ["output", "grad of x", "grad of weight"]
    for row in rows:
        assert 0 < row.kernel.rms < row.kernel.max <= row.verdict.max_allowed
        assert row.kernel.max == row.verdict.max_error
        assert 0 < row.eager.rms < row.eager.max
        assert row.atol < row.kernel.max


def test_the_kernel_of_the_toy_rounds_less_often_than_eager():
    """dweight: the toy's kernel sums in fp32 and rounds once, eager multiplies in bf16 first."""
    (row,) = (row for row in summary(toy("none"), BF16, EAGER) if row.tensor == "grad of weight")
    assert row.kernel.rms < row.eager.rms


def run(monkeypatch, fault, *arguments):
    monkeypatch.setattr(operators, "names", lambda: ["toy"])
    monkeypatch.setattr(operators, "load", lambda name: toy(fault))
    monkeypatch.setattr(command, "available_modes", lambda: (EAGER, KERNELS))
    return cli.main(["tolerance", "toy", *arguments])


def test_command_prints_the_table_and_passes(monkeypatch, capsys):
    # A terminal of 80 columns must do.
    monkeypatch.setattr(command.terminal, "console", lambda: Console(width=80))
    assert run(monkeypatch, "none") == 0
    printed = capsys.readouterr().out
    assert "toy, kernels in interpreter" in printed
    assert all(case.name in printed for case in CASES)
    assert max(map(len, printed.splitlines())) <= 80


def test_command_names_what_the_oracle_rejects(monkeypatch, capsys):
    assert run(monkeypatch, "off by a row", "--case", "bfloat16") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "bfloat16: output: max error" in printed
    assert "float32" not in printed


def test_command_refuses_an_unknown_case(monkeypatch, capsys):
    assert run(monkeypatch, "none", "--case", "float8") == 2
    assert "--case must be one of float32, float16, bfloat16, no-weight, eps, sliced (got float8)" in capsys.readouterr().err


def test_command_says_where_no_kernel_can_run(monkeypatch, capsys):
    monkeypatch.setattr(operators, "names", lambda: ["toy"])
    monkeypatch.setattr(operators, "load", lambda name: toy("none"))
    monkeypatch.setattr(command, "available_modes", lambda: (EAGER,))
    assert cli.main(["tolerance", "toy"]) == 2
    assert "install npu-op-lab[compiler]" in capsys.readouterr().err
