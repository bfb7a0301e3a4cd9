"""What `npu-lab emulate` and `npu-lab explain` print and write, on a file of a user with a slow and a better kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_op_lab.cli import main

_FILE = """\
import torch
import triton
import triton.language as tl

@triton.jit
def one_row(X, Y, n_rows, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(X + row * BLOCK + cols).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, axis=0) / BLOCK + 1e-6)
        tl.store(Y + row * BLOCK + cols, y.to(Y.dtype.element_ty))

@triton.jit
def column(X, Y, n, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        tl.store(Y + start + at, tl.load(X + (start + at) * stride))

def launch():
    x = torch.randn(640, 1024, dtype=torch.bfloat16)
    one_row[(20,)](x, torch.empty_like(x), 640, BLOCK=1024)
    column[(40,)](x, torch.empty(16384, dtype=torch.bfloat16), 16384, 40, BLOCK=512)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "slow.py"
    path.write_text(_FILE)
    return str(path)


def test_emulate_prints_a_table_and_writes_trace_and_picture(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, png = tmp_path / "out.json", tmp_path / "out.png"
    assert main(["emulate", file, "--soc", "910B4", "--trace", str(trace), "--png", str(png)]) == 0
    said = capsys.readouterr().out
    assert "one_row" in said
    assert "Modelled, not measured" in said
    events = json.loads(trace.read_text())["traceEvents"]
    loads = [event for event in events if event.get("name") == "load" and event["pid"] == 0]
    assert loads
    assert all(event["dur"] > 0 and event["args"]["line"] == "slow.py:9" for event in loads)
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= {"vector", "MTE2, GM to UB"}
    assert png.read_bytes().startswith(b"\x89PNG")


def test_explain_names_what_to_change_and_where(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", file, "--soc", "910B4"]) == 0
    said = capsys.readouterr().out
    assert "scalar reduction at slow.py:10" in said
    assert "small transfers at slow.py:9: load moves 2048 bytes" in said
    assert "discrete access at slow.py:17" in said
    assert "20 programs leave 20 of 40 vector cores idle" in said


def test_emulate_fails_on_a_fault(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "racing.py"
    path.write_text(_FILE.replace("Y + row * BLOCK + cols", "Y + cols"))
    assert main(["emulate", str(path), "--soc", "910B4"]) == 1
    assert "touch the same bytes" in capsys.readouterr().out


def test_a_picture_needs_one_call(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", file, "--soc", "910B4", "--soc", "910B3", "--png", str(tmp_path / "out.png")]) == 2
    assert "name one --soc" in capsys.readouterr().err


def test_an_operator_runs_case_by_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "rmsnorm", "--soc", "910B4", "--case", "one-row", "--jobs", "1"]) == 0
    assert "one-row 910B4" in capsys.readouterr().out
    assert main(["emulate", "rmsnorm", "--soc", "910B4", "--case", "nothing"]) == 2
    assert "case of rmsnorm must be one of" in capsys.readouterr().err
