"""PyTorch's own calls on the emulated chip: recorded, and without values computed only where they are small."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ..watch import UNWRITTEN, name_of
from .eager import FREE, PRODUCTS, WRITE_ONLY, AtenRecorder

# Tensors up to here are computed all the same: numbers that decide what a kernel or the host does are small, and so is the work.
SMALL = 1 << 17  # bytes
# Storages that hold what nobody computed. The process's own: a backward pass is timed apart from the forward whose results it reads.
_BLANK: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
_NEEDS_VALUES = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))


class CpuRecorder(AtenRecorder):
    """Refuses registered ops elsewhere than on the CPU: on a meta tensor they launch no kernel, and would seem to cost nothing.

    Without values a call on large tensors, and a matrix product of any size, gives memory that nothing was written to: a CPU would take
    minutes for what the chip does in milliseconds. What would have to read it is refused by name, see `is_blank`. Small memory that
    is allocated holds zeros, so that no figure hangs on what was there before.
    """

    def __init__(self, values: bool) -> None:
        super().__init__()
        self._values = values

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = name_of(func)
        if self._values or name in FREE or func.is_view or torch.Tag.inplace_view in func.tags:
            result = super().call(func, args, kwargs)
            if not self._values and name in UNWRITTEN and _all_small(result):
                with _disable_current_modes():
                    result.zero_()
            return result
        tensors = _tensors((args, kwargs))
        blank = any(map(is_blank, tensors))
        if _needs_values(func, args):
            if blank:
                raise NotImplementedError(f"aten::{name} depends on data that are not computed without values: emulate it with values=True")
            return super().call(func, args, kwargs)
        if name not in PRODUCTS and _all_small(_like(func, args, kwargs) if name in WRITE_ONLY else tensors):
            result = super().call(func, args, kwargs)
        else:
            result, blank = _unwritten(func, args, kwargs), True
        if blank:
            make_blank(_tensors(result))
        return result

    def registered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in _tensors((args, kwargs)):
            if tensor.device.type != "cpu":
                raise ValueError(
                    f"{func.name()} must be called on CPU tensors in the emulator (got one on device {tensor.device}); "
                    "with values=False torch.empty is enough"
                )
        return super().registered(func, args, kwargs)


def make_blank(tensors: Iterable[torch.Tensor]) -> None:
    """From now on the memory of `tensors` holds what nobody computed."""
    _BLANK.update(tensor.untyped_storage() for tensor in tensors)


def is_blank(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor holds what nobody computed: no figure may hang on it."""
    return tensor.untyped_storage() in _BLANK


def _needs_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether data decide what a call answers or how large it is."""
    if name_of(func) == "index":  # by a mask only
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not _NEEDS_VALUES.isdisjoint(func.tags)


def _unwritten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call would give, with nothing written."""
    written = args[0] if name_of(func).endswith("_") else kwargs.get("out")
    if written is not None:
        return written
    return tree_map_only(
        torch.Tensor,
        lambda like: torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu"),
        _like(func, args, kwargs),
    )


def _like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sizes, strides and dtypes of what a call gives, as meta tensors."""
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs = {**kwargs, "device": "meta"}
    with _disable_current_modes():
        args, kwargs = tree_map_only(torch.Tensor, _meta, (args, kwargs))
        return func(*args, **kwargs)


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    # A 0-d fp64 tensor may be a Python number, which has its own rules of type promotion: it stays one.
    if tensor.dim() == 0 and tensor.dtype == torch.float64:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _all_small(tensors: Any) -> bool:
    return all(tensor.numel() * tensor.element_size() <= SMALL for tensor in _tensors(tensors))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
