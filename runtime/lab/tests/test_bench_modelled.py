"""The modelled backend on a real operator: compiled, timed by the emulator, judged; and memory as counted."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator

from npu_op_lab import operators
from npu_op_lab.bench import MODES, Record, points_of, read, run
from npu_op_lab.bench.memory import PeakMemory
from npu_op_lab.bench.modelled import Modelled
from npu_op_lab.bench.records import schema
from npu_op_lab.cli import main

_TOKENS = 64
# Without the row of the whole MLP, whose weights take their time.
_GEGLU = replace(operators.load("geglu"), bench_variants={})


@pytest.fixture(scope="module")
def backend() -> Modelled:
    return Modelled("Ascend910B4")


@pytest.fixture(scope="module")
def records(backend: Modelled) -> list[Record]:
    points = points_of(_GEGLU, ["llama_2_7b"], [_TOKENS])
    outcome = run(backend, points, ["ours", "eager", "liger", "compile"], MODES)
    assert outcome.failed == []
    assert outcome.notes == ["geglu by compile: measured on a device only, its kernels cannot be compiled offline"]
    return outcome.records


def _value(records: list[Record], provider: str, mode: str, metric: str) -> float:
    (found,) = [r for r in records if (r.kernel_provider, r.kernel_operation_mode, r.metric_name) == (provider, mode, metric)]
    return found.y_values_50[0]


def test_records_are_valid_and_say_that_they_are_modelled(records: list[Record]) -> None:
    validator = Draft202012Validator(schema())
    assert len(records) == 3 * len(MODES) * 2
    for record in records:
        validator.validate(json.loads(json.dumps(asdict(record))))
        assert record.basis == "modelled" and record.soc == "Ascend910B4" and record.verified
    verified = {record.kernel_provider: record.verified_by["how"] for record in records if record.verified_by}
    assert verified["ours"] == verified["liger"] == "emulator-Ascend910B4, T = 50"


def test_no_time_beats_the_roof_and_full_is_forward_and_backward(records: list[Record]) -> None:
    for record in records:
        if record.metric_name == "speed":
            assert record.roof_share is not None and 0 < record.roof_share[0] <= 1
    for provider in ("ours", "eager", "liger"):
        parts = _value(records, provider, "forward", "speed") + _value(records, provider, "backward", "speed")
        assert _value(records, provider, "full", "speed") == pytest.approx(parts)


def test_compile_report_comes_with_the_kernels(records: list[Record]) -> None:
    full = next(r for r in records if (r.kernel_provider, r.kernel_operation_mode, r.metric_name) == ("ours", "full", "speed"))
    assert full.kernels is not None and [kernel["name"] for kernel in full.kernels] == ["geglu_forward_kernel", "geglu_backward_kernel"]
    for kernel in full.kernels:
        assert kernel["double_buffered"] or kernel["violations"]
        assert 0 < kernel["ub_bytes"] <= 192 * 1024 and kernel["vector_ops"] > 0 and kernel["bytes_in"] > kernel["bytes_out"] > 0
    assert full.launches == 2
    eager = next(r for r in records if (r.kernel_provider, r.kernel_operation_mode, r.metric_name) == ("eager", "forward", "speed"))
    assert eager.launches == 2 and eager.kernels is None  # gelu, mul


def test_memory_is_that_of_the_tensors(records: list[Record]) -> None:
    tensor = _TOKENS * 11008 * 2 / 2**20
    # gate, up, output; eager keeps gelu(gate) too
    assert _value(records, "ours", "forward", "memory") == pytest.approx(3 * tensor)
    assert _value(records, "eager", "forward", "memory") == pytest.approx(4 * tensor)
    # and the incoming gradient and two gradients
    assert _value(records, "ours", "full", "memory") == pytest.approx(6 * tensor)


def test_wrong_results_in_the_emulator_get_no_figure(backend: Modelled) -> None:
    def without_gelu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return _GEGLU.function(gate=gate, up=up) * 1.1

    points = points_of(replace(_GEGLU, function=without_gelu), ["llama_2_7b"], [_TOKENS])
    outcome = run(Modelled("Ascend910B4"), points, ["ours"], ["forward"])
    assert outcome.failed and outcome.records[0].y_values_50 == []


def test_command_writes_records_and_goes_on_after_an_unknown_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "gpt_9", "--model", "llama_2_7b", "--tokens", "64", "--peers", "none", "--mode", "forward", "--plot"]
    assert main(["bench", "rmsnorm", *arguments, "--soc", "Ascend910B3", "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "model must be one of llama_3_8b" in shown.err and "rms_norm, bfloat16: modelled on Ascend910B3" in shown.out
    (file,) = tmp_path.glob("rmsnorm-*.jsonl")
    assert {record.soc for record in read(file)} == {"Ascend910B3"}
    assert list(tmp_path.glob("rmsnorm-*-rms_norm-Ascend910B3.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_op"], "operator must be one of"),
        (["geglu", "--soc", "Ascend1"], "soc must be one of"),
        (["geglu", "--soc", "Ascend910_9589"], "no GM rate"),
    ],
)
def test_command_names_what_it_does_not_know(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--tokens", "0"], ["--tokens", "8,x"], ["--peers", "ours"], ["--mode", "sideways"]])
def test_command_refuses_wrong_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "geglu", *arguments])
    assert stopped.value.code == 2 and arguments[0] in capsys.readouterr().err


def test_peak_memory_counts_what_is_alive() -> None:
    x = torch.empty(1000, dtype=torch.uint8)
    memory = PeakMemory([x, x[10:], None])
    assert memory.peak == 1000  # a view is no memory of its own
    with memory:
        a = torch.zeros(500, dtype=torch.uint8)
        del a
        b = x + 1
        assert memory.bytes == memory.peak == 2000
        memory.restart()
        c = b[:10]
        del b
        assert memory.bytes == 2000  # c keeps it
        del c
    assert memory.bytes == 1000 and memory.peak == 2000


def test_peak_memory_sees_what_autograd_keeps_until_backward() -> None:
    x = torch.empty(256, device="meta", requires_grad=True)
    with PeakMemory([x]) as memory:
        y = x.exp().exp()  # each keeps its result
        assert memory.bytes == 3 * 1024
        y.backward(torch.empty(256, device="meta"))
        del y
        assert memory.bytes == 2 * 1024  # x and its gradient
    assert memory.peak >= 5 * 1024
