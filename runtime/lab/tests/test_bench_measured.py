"""The measured backend on a stand-in for a device, and the reading of an NPU's profile (no device was at hand: the sample is made up
in the columns that torch_npu writes)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from npu_op_lab.bench import MODES, measured, points_of, run
from npu_op_lab.bench.device import Device
from npu_op_lab.bench.measured import Measured
from npu_op_lab.bench.npu_profile import per_call
from npu_op_runtime.spec import Case, Model

from .bench_fakes import bench_case, spec, zeros


class _Event:
    def __init__(self, **_: Any) -> None:
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, after: _Event) -> float:
        return (after._at - self._at) * 1e3


class _Cpu(Device):
    """What `Device` asks of torch.cuda, answered on the CPU: only that figures arrive is tested, none is shown."""

    l2_bytes = 4096
    free_bytes = 10**9
    soc = None

    def __init__(self) -> None:
        self.kind, self.name = "cpu", "no device"

    @property
    def allocated(self) -> int:
        return 1000

    def peak(self, call: Callable[[], Any]) -> int:
        call()
        return 1000 + 3 * 2**20

    def event(self) -> _Event:
        return _Event()

    def synchronize(self) -> None:
        pass

    def empty_cache(self) -> None:
        pass


@pytest.fixture(scope="module")
def backend() -> Measured:
    with mock.patch.object(measured, "_COPY_BYTES", 2**20):
        return Measured(_Cpu())


def test_every_mode_is_measured_with_its_spread(backend: Measured) -> None:
    outcome = run(backend, points_of(spec(), ["llama_3_8b"], [8]), ["ours", "eager", "liger"], MODES)
    assert outcome.notes == [] and outcome.failed == []
    found = {(record.kernel_provider, record.kernel_operation_mode, record.metric_name) for record in outcome.records}
    metrics = ("speed", "host_time", "memory")
    assert found == {(who, mode, metric) for who in ("ours", "eager", "liger") for mode in MODES for metric in metrics}
    for record in outcome.records:
        assert record.basis == "measured" and record.verified
        assert 0 < record.y_values_20[0] <= record.y_values_50[0] <= record.y_values_80[0]
    memory = next(record for record in outcome.records if record.metric_name == "memory")
    # the peak above what was there, and the inputs and incoming gradients of one set: x, and as much upstream
    assert memory.y_values_50[0] == pytest.approx(3 + 2 * 8 * 64 * 2 / 2**20)


def test_a_wrong_provider_is_never_timed(backend: Measured) -> None:
    def seen_only_once(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return zeros(x)

    calls: list[torch.Tensor] = []
    outcome = run(backend, points_of(spec(peers={"liger": seen_only_once}), ["llama_3_8b"], [8]), ["liger"], MODES)
    assert len(calls) == 1 and outcome.failed
    assert not any(record.y_values_50 for record in outcome.records)


def test_the_time_of_the_host_is_taken_in_turns_at_few_rows(backend: Measured) -> None:
    calls: list[tuple[str, int]] = []

    def watched(name: str) -> Callable[..., torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            calls.append((name, len(x)))
            return x + x

        return call

    point = points_of(spec(), ["llama_3_8b"], [4096])[0]
    found = backend.host_times(point, {name: watched(name) for name in ("ours", "compile", "liger")}, ["no-grad-forward"])
    assert {name: len(measured) for name, measured in found.items()} == {"ours": 1, "liger": 1}
    calls = calls[6:]  # of each: one that draws incoming gradients, and two to warm up
    rounds = [(name, len(list(group))) for name, group in itertools.groupby(name for name, _ in calls)]
    assert [name for name, _ in rounds] == ["ours", "liger"] * 15
    assert all(1 <= count <= 20 for _, count in rounds)
    assert {rows for _, rows in calls} == {1024}


def test_a_peer_without_a_time_of_the_host_keeps_its_other_figures(backend: Measured) -> None:
    def only_long(x: torch.Tensor) -> torch.Tensor:
        if len(x) < 2048:
            raise ValueError("too short")
        return x + x

    points = points_of(spec(peers={"liger": only_long}), ["llama_3_8b"], [2048])
    outcome = run(backend, points, ["ours", "liger"], ["no-grad-forward"])
    assert outcome.notes == ["toy by liger: no time of the host at llama_3_8b-T2048: ValueError: too short"]
    metrics = {name: {one.metric_name for one in outcome.records if one.kernel_provider == name} for name in ("ours", "liger")}
    assert metrics == {"ours": {"speed", "memory", "host_time"}, "liger": {"speed", "memory"}}


def test_argument_sets_take_turns_beyond_l2(backend: Measured) -> None:
    seen: set[int] = set()

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.add(x.data_ptr())
        return x + x

    point = points_of(spec(function=watched), ["llama_3_8b"], [8])[0]
    backend.measure(point, "ours", watched, ["no-grad-forward"])
    # a set is 2048 bytes, twice L2 is 8192: four of them, and one more
    assert len(seen) == 5


def test_a_case_without_gradients_has_one_mode(backend: Measured) -> None:
    def gradient_free(model: Model, tokens: int) -> Case:
        return replace(bench_case(model, tokens), tags=frozenset({"bench", "gradient-free"}))

    outcome = run(backend, points_of(spec(bench_case=gradient_free), ["llama_3_8b"], [8]), ["ours"], MODES)
    assert {record.kernel_operation_mode for record in outcome.records} == {"no-grad-forward"}


_HEADER = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),"
    "Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,"
    "Output Formats,Context ID"
)


def _row(name: str, start: float, duration: float, core: str = "AI_VECTOR_CORE") -> str:
    shapes = '"""4096,4096"""'
    return f"0,0,4294967295,7,2,{name},{name},dynamic,{core},{start}\t,{duration},0.5,40,0,NO,{shapes},DT_BF16,ND,{shapes},DT_BF16,ND,N/A"


def test_all_kernels_of_a_call_are_added_up_in_the_order_of_their_start() -> None:
    rows = [
        _row("rms_norm_backward_kernel", 100.25, 30.0),
        _row("sum_partials_kernel", 131.0, 2.5),
        _row("sum_partials_kernel", 171.0, 3.5),  # written out of order
        _row("rms_norm_backward_kernel", 140.0, 29.0),
    ]
    assert per_call("\n".join([_HEADER, *rows]), 2) == pytest.approx([0.0325, 0.0325])


def test_a_profile_that_is_not_of_equal_calls_is_refused() -> None:
    rows = [_row("one", 1.0, 1.0), _row("two", 2.0, 1.0), _row("two", 3.0, 1.0), _row("one", 4.0, 1.0)]
    with pytest.raises(ValueError, match="2 times the same kernels .*4 rows of one, two"):
        per_call("\n".join([_HEADER, *rows]), 2)
    with pytest.raises(ValueError, match="3 times the same kernels"):
        per_call("\n".join([_HEADER, *rows]), 3)


@pytest.mark.parametrize("text", ["", "Name,Duration\none,3\n", _HEADER])
def test_a_profile_without_its_columns_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must have rows with the columns"):
        per_call(text, 1)


def test_results_of_few_elements_are_judged_over_several_seeds_at_fewer_rows(backend: Measured) -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.float64 if x.dtype == torch.float64 else torch.float32) ** 2).sum()

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return total(x) * 1.01

    with mock.patch.object(measured, "_JUDGED_BYTES", 4 * 2 * 64 * 2):
        point = points_of(spec(function=total, reference=total), ["llama_3_8b"], [8])[0]
        verdict = backend.verify(point, "ours", total)
        assert verdict.passed and verdict.how == "no device, the shape that is timed; output at T = 4"
        assert not backend.verify(point, "ours", wrong).passed
