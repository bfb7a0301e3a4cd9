"""Liger-Kernel's Ascend operators import without an NPU, and their launches are recorded and compiled."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from triton.runtime import driver

from npu_op_lab.compiler import check, offline, report
from npu_op_lab.peers.liger import liger_ascend


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def _tensors(count: int, *shape: int) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(count)]


def test_the_import_leaves_nothing_behind(monkeypatch):
    names = ("ASCEND_UB_CAPACITY_BITS", "TRITON_DISABLE_LINE_INFO")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    before = driver.active
    liger_ascend("rope")  # the module that needs the tile operations of triton-ascend 3.2.1
    assert driver.active is before and not any(name in os.environ for name in names)
    assert "triton.language.extra.cann" not in sys.modules and "triton.language.extra.cann.extension" not in sys.modules


@pytest.mark.parametrize(("soc", "cores"), [("Ascend910B4", 40), ("Ascend910B1", 48)])
def test_rms_norm_forward_and_backward(soc, cores):
    rms_norm = liger_ascend("rms_norm")
    (x,), (weight,) = _tensors(1, 1024, 4096), _tensors(1, 4096)
    with offline(soc) as launches:
        y = rms_norm.LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)
        y.backward(torch.empty_like(y))
    assert [(launch.kernel.name, launch.kernel.soc, launch.grid) for launch in launches] == [
        ("_rms_norm_forward_fused_2d", soc, (cores, 1, 1)),
        ("_rms_norm_backward_row", soc, (cores, 1, 1)),
    ]
    forward, backward = (report(launch.kernel) for launch in launches)
    assert check(forward) == []
    # Its backward reduces a one-row tile to a scalar at every row.
    assert any("between the scalar unit and other pipes per trip" in violation for violation in check(backward))


def test_geglu_forward_and_backward():
    geglu = liger_ascend("geglu")
    gate, up = _tensors(2, 256, 11008)
    with offline("Ascend910B4") as launches:
        y = geglu.LigerGELUMulFunction.apply(gate, up)
        y.backward(torch.empty_like(y))
    assert [launch.kernel.name for launch in launches] == ["_geglu_forward_kernel_flat", "_geglu_backward_kernel_flat"]
    assert [tuple(argument.shape) for argument in launches[0].args[:3]] == [(256, 11008)] * 3 and launches[0].args[3] == 256 * 11008
    assert [len(report(launch.kernel).hot_loops) for launch in launches] == [1, 1]


def test_an_unknown_module_is_named():
    with pytest.raises(ImportError, match="no_such_operator"):
        liger_ascend("no_such_operator")
