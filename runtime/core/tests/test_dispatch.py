from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from npu_op_runtime import explain
from npu_op_runtime.device import offline, target_of
from npu_op_runtime.dispatch import choose

CPU = torch.empty(1)


def without_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_default_is_the_registered_op():
    assert choose(CPU, None) == "triton"


def test_cpu_default_is_explained_as_the_reference(monkeypatch):
    without_interpreter(monkeypatch)
    assert explain(CPU) == ("eager", "the default for cpu tensors: the registered op runs the reference")


def test_named_triton_on_cpu_raises_with_the_reason(monkeypatch):
    without_interpreter(monkeypatch)
    with pytest.raises(NotImplementedError, match="needs an NPU or CUDA tensor; on a CPU tensor set TRITON_INTERPRET=1"):
        choose(CPU, "triton")
    assert "cannot run" in explain(CPU, "triton").reason


def test_offline_takes_the_kernel_path(monkeypatch):
    without_interpreter(monkeypatch)
    with offline("Ascend910B4") as soc:
        assert choose(CPU, "triton") == "triton"
        target = target_of(CPU)
        assert (target.backend, target.cores, target.ub_bytes) == ("npu", soc.vector_cores, soc.ub_bytes)
    with pytest.raises(NotImplementedError):
        target_of(CPU)


@pytest.mark.parametrize("empty", ("", [], 0))
def test_an_empty_name_is_no_default(empty):
    for ask in (choose, explain):
        with pytest.raises(ValueError, match="implementation must be one of"):
            ask(CPU, empty)


def test_unknown_implementation_names_the_choices():
    with pytest.raises(ValueError, match=r"implementation must be one of None, 'triton', 'vendor', 'eager' \(got 'cuda'\)"):
        choose(CPU, "cuda")


@pytest.mark.parametrize(("value", "answer"), (("eager", "eager named by NPU_OP_IMPLEMENTATION"), ("fast", "ValueError")))
def test_environment_overrides_the_default(value, answer):
    code = "import torch; from npu_op_runtime import explain; print(*explain(torch.empty(1)))"
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "NPU_OP_IMPLEMENTATION": value}, capture_output=True, text=True)
    assert answer in run.stdout + run.stderr


def test_a_device_without_kernels_is_named():
    with pytest.raises(NotImplementedError, match=r"no kernels for device 'meta'; allowed: npu, cuda, cpu"):
        target_of(torch.empty(1, device="meta"))
