"""A CUDA GPU or an NPU, by the interface that torch.cuda and torch.npu share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from npu_op_runtime.soc import get_soc

# Device clocks for which the stream is held while the host fills it: about 5 ms, the host's part of a batch.
_HOLD_CYCLES = 10_000_000
_BATCH = 10


class Device:
    """Times calls and watches memory.

    Args:
        kind: "cuda" or "npu".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._api: Any = getattr(torch, kind)
        self.name: str = self._api.get_device_name()

    @property
    def soc(self) -> str | None:
        """Name in the SoC table, None for a GPU."""
        return get_soc(self.name).name if self.kind == "npu" else None

    @property
    def l2_bytes(self) -> int:
        if self.kind == "npu":
            return get_soc(self.name).l2_bytes
        size: int = self._api.get_device_properties().L2_cache_size
        return size

    @property
    def free_bytes(self) -> int:
        free: int = self._api.mem_get_info()[0]
        return free

    @property
    def allocated(self) -> int:
        found: int = self._api.memory_allocated()
        return found

    def time(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """ms between the events around each call, in batches queued before the first of them starts: the host is not waited for."""
        found: list[float] = []
        for start in range(0, len(calls), _BATCH):
            events = []
            with no_collection():
                self.synchronize()
                self.hold()
                for call in calls[start : start + _BATCH]:
                    before, after = self.event(), self.event()
                    before.record()
                    call()
                    after.record()
                    events.append((before, after))
                self.synchronize()
            found += [before.elapsed_time(after) for before, after in events]
        return found

    def peak(self, call: Callable[[], Any]) -> int:
        """Bytes allocated at the peak of the call."""
        self.synchronize()
        self._api.reset_peak_memory_stats()
        call()
        self.synchronize()
        peak: int = self._api.max_memory_allocated()
        return peak

    def event(self) -> Any:
        return self._api.Event(enable_timing=True)

    def synchronize(self) -> None:
        self._api.synchronize()

    def hold(self) -> None:
        """Keep the stream busy. An NPU has no such call: there, times between events are end to end, the host's gaps included."""
        if self.kind == "cuda":
            self._api._sleep(_HOLD_CYCLES)

    def empty_cache(self) -> None:
        gc.collect()
        self._api.empty_cache()


@contextmanager
def no_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
