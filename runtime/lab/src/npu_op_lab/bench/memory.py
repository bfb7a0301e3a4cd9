"""Peak memory of a computation counted from its tensors, on any device, memory that is never touched included."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..execution import Mode
from ..watch import ThroughOps

MB = 2**20  # Liger's megabyte


class PeakMemory(ThroughOps):
    """Follows the storages that are allocated within it, inside registered ops too, until they are freed.

    Args:
        given: tensors that exist before and stay: counted from the start.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        super().__init__()
        self._alive: dict[int, int] = {}
        self.bytes = 0
        self.peak = 0
        self._see(given)

    def restart(self) -> None:
        """Forget the peak; what is alive stays."""
        self.peak = self.bytes

    def aten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().aten(func, args, kwargs)
        self._see(tree_leaves(result))
        return result

    def _see(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._alive:
                    self._alive[storage._cdata] = storage.nbytes()
                    self.bytes += storage.nbytes()
                    weakref.finalize(storage, self._free, storage._cdata)
        self.peak = max(self.peak, self.bytes)

    def _free(self, key: int) -> None:
        self.bytes -= self._alive.pop(key)


def peak_of_loss(loss: Callable[..., torch.Tensor], *tensors: torch.Tensor, mode: Mode) -> int:
    """Peak bytes of `loss(*tensors)`, which stay, and of its backward where one of them requires a gradient."""
    with PeakMemory(tensors) as memory, mode.enter():
        result = loss(*tensors)
        if result.requires_grad:
            result.backward()
    return memory.peak
