"""The context in which a Triton launch on CPU tensors is compiled for an Ascend SoC and recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from triton.backends import backends
from triton.runtime import driver

from npu_op_runtime import device
from npu_op_runtime.soc import Soc, get_soc

from .driver import OfflineBackend, OfflineDriver
from .launch import Launch


@contextmanager
def offline(soc: str, on_launch: Callable[[Launch], None] | None = None) -> Iterator[list[Launch]]:
    """Within it an ordinary Triton call on CPU tensors, or an npu-op operator, is compiled for `soc` instead of run.

    Launches are appended to the list that is yielded and handed to `on_launch`. Nothing is computed: outputs keep what
    was in their memory. Compiled kernels are cached by content in TRITON_CACHE_DIR, else in ~/.cache/npu-op-lab. Not for
    use from several threads at once: Triton's driver, its back end and the environment are the process's own.

    Raises:
        ValueError: unknown `soc`.
        NotImplementedError: an A5 SoC, which bishengir-compile 1.2.0 compiles by another pipeline.
        RuntimeError: kernels run in the interpreter (TRITON_INTERPRET=1).
        UbOverflow, CompileError: from the call, when a kernel does not compile.
    """
    row = get_soc(soc)
    if row.generation == "A5":
        raise NotImplementedError(f"the offline compiler covers A2 and A3, {row.name} is A5")
    if device.interpreting():
        raise RuntimeError("TRITON_INTERPRET=1 makes Triton interpret kernels: unset it to compile them for an Ascend SoC")
    launches: list[Launch] = []

    def record(launch: Launch) -> None:
        launches.append(launch)
        if on_launch is not None:
            on_launch(launch)

    with device.offline(row.name), _environment(), _stand_in(row, record):
        yield launches


@contextmanager
def _stand_in(row: Soc, record: Callable[[Launch], None]) -> Iterator[None]:
    """Triton's driver and Ascend back end replaced by the offline ones."""
    real_driver, real_backend = driver.active, backends["ascend"]
    backends["ascend"] = replace(real_backend, compiler=OfflineBackend)
    driver.set_active(OfflineDriver(row, record))
    try:
        yield
    finally:
        driver.set_active(real_driver)
        backends["ascend"] = real_backend


@contextmanager
def _environment() -> Iterator[None]:
    """Triton's cache folder, and source lines kept in the IR (for the lab only: triton-ascend issue 494 is about device code)."""
    changes = {"TRITON_DISABLE_LINE_INFO": "0", "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", "").strip() or str(_cache_dir())}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache") / "npu-op-lab" / "triton"
