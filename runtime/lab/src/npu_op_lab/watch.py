"""Dispatch modes that see what an operator does: the ATen calls of its Python code and those inside its registered ops."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .inputs import poison


class OpCall(NamedTuple):
    """One call that went through the dispatcher."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]


class ThroughOps(TorchDispatchMode):
    """A dispatch mode whose `aten` answers every ATen call, inside registered ops too, where an ordinary mode is blind.

    It calls a registered op's kernel itself, with this mode on and the dispatcher in the state that it has outside of any mode.
    """

    def __enter__(self) -> Any:
        mode = super().__enter__()
        self._outside = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        return mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return self.aten(func, args, kwargs) if func.namespace == "aten" else self.registered(func, args, kwargs)

    def aten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    def registered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = next(leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        key = getattr(torch._C.DispatchKey, torch._C._dispatch_key_for_device(device))
        with _Within(self), torch._C._ForceDispatchKeyGuard(*self._outside):
            return func._op_dk(key, *args, **kwargs)


class _Within(TorchDispatchMode):
    """Puts `owner`, which the dispatcher has taken off the stack to ask it, back on."""

    def __init__(self, owner: ThroughOps) -> None:
        super().__init__()
        self._owner = owner

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._owner.__torch_dispatch__(func, types, args, kwargs)


class Recorder(ThroughOps):
    """Keeps every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []

    def aten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().aten(func, args, kwargs)
        self.calls.append(OpCall(func, args, kwargs, result))
        return result

    def registered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().registered(func, args, kwargs)
        self.calls.append(OpCall(func, args, kwargs, result))
        return result

    def copies_of(self, tensors: list[torch.Tensor]) -> list[OpCall]:
        """The calls that copied the memory of one of `tensors`."""
        memory = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
        copies = [call for call in self.calls if name_of(call.func) in _COPIES]
        return [call for call in copies if any(tensor.untyped_storage().data_ptr() in memory for tensor in _sources(call))]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors that were allocated by name (empty, zeros, ...), freed or not."""
        return sum(call.result.numel() * call.result.element_size() for call in self.calls if name_of(call.func) in (*UNWRITTEN, *_FILLED))


_COPIES = ("clone", "copy_", "_to_copy", "contiguous", "cat", "index_select", "index", "repeat")
UNWRITTEN = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_FILLED = ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full")


def name_of(func: Any) -> str:
    """`mm` of `aten::mm.out`."""
    name: str = func._schema.name.partition("::")[2]
    return name


def _sources(call: OpCall) -> list[torch.Tensor]:
    # copy_ writes its first argument.
    return call.tensors[1:] if name_of(call.func) == "copy_" else call.tensors


_BAND = 1 << 16  # bytes on each side; a multiple of every alignment that a device asks for
_CANARY = 0xFF  # NaN in every floating dtype, so that reading a band shows too


class GuardedMemory(ThroughOps):
    """Every tensor that is allocated within lies between two bands of NaN, and holds NaN where nothing was written.

    `broken_bands` tells, after the call, where something was written outside of a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bands: list[tuple[str, torch.Tensor]] = []

    def aten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().aten(func, args, kwargs)
        name = name_of(func)
        if name in UNWRITTEN:
            return self._embed(name, result).fill_(poison(result.dtype))
        if name in _FILLED:
            return self._embed(name, result).copy_(result)
        return result

    def guard(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values and strides in guarded memory; the gaps of a strided tensor hold NaN, so that reading them shows."""
        return self._embed("input", tensor).copy_(tensor)

    def broken_bands(self) -> list[str]:
        return [where for where, band in self._bands if bool((band != _CANARY).any())]

    def _embed(self, what: str, like: torch.Tensor) -> torch.Tensor:
        size = like.element_size()
        span = 1 + sum((length - 1) * stride for length, stride in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
        memory = torch.empty(2 * _BAND + span * size, dtype=torch.uint8, device=like.device)
        before, inner, after = memory.split((_BAND, span * size, _BAND))
        for side, band in (("before", before), ("after", after)):
            band.fill_(_CANARY)
            self._bands.append((f"{side} {what} {tuple(like.shape)}", band))
        inside = inner.view(like.dtype)
        inside.fill_(poison(like.dtype))
        return inside.as_strided(like.shape, like.stride())


# On a CPU tensor these reach its memory without the dispatcher.
_HOST_METHODS = ("tolist", "numpy", "cpu", "__array__")
_HOST_OPS = (
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
)


class HostSyncs(ThroughOps):
    """Collects the calls that on a device would wait for it: values read on the host, shapes that depend on values.

    A 0-d fp64 tensor on the CPU is exempt: it is a Python number on its way through a compiled graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._patches = ExitStack()

    def __enter__(self) -> Any:
        for name in _HOST_METHODS:
            self._patches.enter_context(mock.patch.object(torch.Tensor, name, self._noting(name, getattr(torch.Tensor, name))))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    def aten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = name_of(func)
        if name in _HOST_OPS and not (args[0].dim() == 0 and args[0].dtype == torch.float64 and args[0].device.type == "cpu"):
            self.found.append(name)
        return super().aten(func, args, kwargs)

    def _noting(self, name: str, method: Any) -> Any:
        def noting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.found.append(name)
            return method(tensor, *args, **kwargs)

        return noting
