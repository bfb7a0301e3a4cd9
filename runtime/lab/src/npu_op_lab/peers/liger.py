"""Imports Liger-Kernel 0.8.5's Ascend kernels where there is no NPU, and under triton-ascend 3.2.0."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import triton.language as tl
import triton.testing  # noqa: F401 -- adds triton-ascend's own operations to triton.language

from npu_op_runtime.soc import get_soc

from ..compiler import offline

_ASCEND = "liger_kernel.ops.backends._ascend"
_CANN = "triton.language.extra.cann"
_UB_BITS = "ASCEND_UB_CAPACITY_BITS"
_SOC = "Ascend910B4"


def liger_ascend(module: str) -> ModuleType:
    """A module of Liger's Ascend operators, "rms_norm", "geglu", ...; launches are recorded under `offline`, made on an NPU.

    Raises:
        ImportError: Liger-Kernel is not installed, or has no such module.
    """
    if find_spec("liger_kernel") is None:
        # Its dependency `triton` would overwrite triton-ascend, hence --no-deps.
        raise ImportError("Liger-Kernel is not installed: pip install --no-deps liger-kernel==0.8.5")
    # On an NPU Triton has a driver of its own, which the import asks for.
    with nullcontext() if hasattr(torch, "npu") else offline(_SOC), _stand_ins():
        utils: Any = import_module("liger_kernel.ops.utils")
        # Liger keeps the first core count it sees: without that cache it asks the driver of each SoC.
        utils.get_npu_core_count = getattr(utils.get_npu_core_count, "__wrapped__", utils.get_npu_core_count)
        # Reads the UB size and keeps it: every A2 and A3 SoC has the same.
        import_module(f"{_ASCEND}.ub_manager").get_ub_manager()
        return import_module(f"{_ASCEND}.ops.{module}")


def ascend_operators() -> dict[str, Any]:
    """What Liger puts into `liger_kernel.ops` on an NPU, by name.

    Raises:
        ImportError: Liger-Kernel is not installed.
    """
    package = sys.modules[str(liger_ascend("rms_norm").__package__)]
    return {name: getattr(package, name) for name in package.__all__}


@contextmanager
def _stand_ins() -> Iterator[None]:
    """The UB size, and the module of tile operations that triton-ascend has from 3.2.1 on, only while Liger imports them."""
    modules = {}
    if find_spec(_CANN) is None:
        extension = ModuleType(f"{_CANN}.extension")
        extension.__getattr__ = lambda name: getattr(tl, name)  # type: ignore[method-assign]
        modules = {_CANN: ModuleType(_CANN), extension.__name__: extension}
    before = os.environ.get(_UB_BITS)
    os.environ[_UB_BITS] = str(8 * get_soc(_SOC).ub_bytes)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        if before is None:
            del os.environ[_UB_BITS]
        else:
            os.environ[_UB_BITS] = before
