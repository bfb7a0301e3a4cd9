"""The context in which a Triton launch on CPU tensors is compiled for an Ascend SoC and recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from npu_op_runtime import device
from triton.backends import backends
from triton.runtime import driver

from .driver import OfflineBackend, OfflineDriver
from .launch import Launch


@contextmanager
def offline(soc: str, on_launch: Callable[[Launch], None] | None = None) -> Iterator[list[Launch]]:
    """Within it an ordinary Triton call on CPU tensors, or an npu-op operator, is compiled for `soc` instead of run.

    Launches are appended to the list that is yielded and handed to `on_launch`. Nothing is computed: outputs keep what
    was in their memory. Compiled kernels are cached by content in TRITON_CACHE_DIR, else in ~/.cache/npu-op-lab.

    Raises:
        ValueError: unknown `soc`.
        RuntimeError: kernels run in the interpreter (TRITON_INTERPRET=1).
        UbOverflow, CompileError: from the call, when a kernel does not compile.
    """
    if device.interpreting():
        raise RuntimeError("TRITON_INTERPRET=1 makes Triton interpret kernels: unset it to compile them for an Ascend SoC")
    launches: list[Launch] = []

    def record(launch: Launch) -> None:
        launches.append(launch)
        if on_launch is not None:
            on_launch(launch)

    environment = {
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", "").strip() or str(_cache_dir()),
        "TRITON_DISABLE_LINE_INFO": "0",
    }
    with device.offline(soc) as row:
        before = driver.active
        stand_in = {"ascend": replace(backends["ascend"], compiler=OfflineBackend)}
        with mock.patch.dict(os.environ, environment), mock.patch.dict(backends, stand_in):
            driver.set_active(OfflineDriver(row, record))
            try:
                yield launches
            finally:
                driver.set_active(before)


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache") / "npu-op-lab" / "triton"
