"""The machines that a user meets: no Triton, the wrong Triton, torch_npu without CANN."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types

import pytest

from npu_op_runtime import __main__ as doctor
from npu_op_runtime import stack
from npu_op_runtime.launch import load_kernels


@pytest.fixture
def installed(monkeypatch):
    """Pretends that exactly these distributions are installed: {name: version}."""
    load_kernels.cache_clear()

    def pretend(versions, modules=("pybind11",)):
        def version(name):
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        present = {*modules, *(["triton"] if {"triton", "triton-ascend"} & versions.keys() else [])}
        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in present else None)
        monkeypatch.setattr(stack, "cann_path", lambda: None)

    yield pretend
    load_kernels.cache_clear()


def problems():
    return {finding.what: finding.remedy for finding in stack.diagnose() if finding.level == "problem"}


def test_a_machine_without_triton_is_no_problem_until_a_kernel_is_wanted(installed):
    installed({"torch": "2.13.0"})
    assert not problems()
    assert "Triton is not installed; run: pip install 'npu-op-runtime[cuda]'" in stack.triton_problem("cuda")
    with pytest.raises(ImportError, match=r"somewhere.kernel cannot run on cuda: Triton is not installed; run: pip install"):
        load_kernels("somewhere.kernel", "cuda")


def test_triton_where_triton_ascend_is_expected(installed):
    installed({"torch": "2.13.0", "triton": "3.6.0"})
    with pytest.raises(ImportError, match=r"on npu: triton-ascend is not installed; run: pip install 'npu-op-runtime\[ascend\]'"):
        load_kernels("somewhere.kernel", "npu")


def test_triton_over_triton_ascend_names_the_reinstall(installed):
    installed({"torch": "2.13.0", "triton": "3.9.0", "triton-ascend": "3.2.0"})
    assert problems() == {"triton 3.9.0 and triton-ascend 3.2.0 overwrite each other": stack.REINSTALL_TRITON_ASCEND}
    with pytest.raises(ImportError, match=r"overwrite each other; run: pip uninstall -y triton && pip install --force-reinstall"):
        load_kernels("somewhere.kernel", "npu")


def test_pybind11_that_triton_ascend_does_not_declare(installed):
    installed({"torch": "2.13.0", "triton-ascend": "3.2.0"}, modules=())
    assert problems() == {"triton-ascend needs pybind11 and does not declare it": "pip install pybind11"}


def test_numpy_too_new_for_the_interpreter(installed):
    installed({"torch": "2.13.0", "triton-ascend": "3.2.0", "numpy": "2.4.6"})
    assert list(problems().values()) == ["pip install 'numpy<2.4'"]


def test_torch_npu_without_cann(installed):
    installed({"torch": "2.7.1", "torch-npu": "2.7.1", "triton-ascend": "3.2.0", "numpy": "1.26.4"})
    ((what, remedy),) = problems().items()
    assert "torch-npu 2.7.1 is installed but CANN is not found" in what
    assert "set_env.sh" in remedy


def test_torch_npu_that_does_not_import(installed, monkeypatch, tmp_path):
    installed({"torch": "2.7.1", "torch-npu": "2.6.0"})
    monkeypatch.setattr(stack, "cann_path", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    ((what, _),) = problems().items()
    assert what.startswith("torch-npu 2.6.0 does not import: ")


def test_a_whole_ascend_stack_is_fine(installed, monkeypatch, tmp_path):
    installed({"torch": "2.7.1", "torch-npu": "2.7.1", "triton-ascend": "3.2.0", "numpy": "1.26.4"})
    monkeypatch.setattr(stack, "cann_path", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    assert not problems()
    assert stack.triton_problem("npu") is None


def test_cann_is_found_by_its_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert stack.cann_path() == tmp_path
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "absent"))
    assert stack.cann_path() is None


def test_doctor_prints_the_remedy_and_fails_on_a_problem(installed, capsys):
    installed({"torch": "2.13.0", "triton": "3.9.0", "triton-ascend": "3.2.0"})
    assert doctor.main() == 1
    assert stack.REINSTALL_TRITON_ASCEND in capsys.readouterr().out


def test_doctor_passes_on_this_machine(capsys):
    assert doctor.main() == 0
    assert "torch" in capsys.readouterr().out
