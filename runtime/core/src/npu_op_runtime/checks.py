"""Argument checks shared by the operators: each names the argument, what came and what is allowed, before anything is launched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

_MAX_PASSED = 4096  # every number of rows has an entry of its own


def remembered(check: Callable[..., None]) -> Callable[..., None]:
    """Decorates an operator's checks: arguments like those that passed before are not checked again, which takes a third of the time.

    What is checked may depend on shape, dtype, device and requires_grad of tensors and on the other arguments, nothing else.
    """
    passed: set[tuple[Any, ...]] = set()

    @functools.wraps(check)
    def checked(*arguments: Any) -> None:
        if torch.compiler.is_compiling():
            check(*arguments)
            return
        # With types: 2, which a check may allow, is equal to 2.0, which it may refuse.
        key = tuple([
            (argument.shape, argument.dtype, argument.device, argument.requires_grad)
            if isinstance(argument, torch.Tensor) else (type(argument), argument)
            for argument in arguments
        ])  # fmt: skip
        try:
            if key in passed:
                return
        except TypeError:  # a list, say, has no hash
            check(*arguments)
            return
        check(*arguments)
        if len(passed) >= _MAX_PASSED:  # more, where threads have added theirs at once
            passed.clear()
        passed.add(key)

    return checked


def require_tensor(argument: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{argument} must be a torch.Tensor (got {type(value).__name__})")


def require_shape(argument: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    if tensor.shape != tuple(shape):
        raise ValueError(f"{argument} must have shape {tuple(shape)} (got {tuple(tensor.shape)})")


def require_same_device(**tensors: torch.Tensor | None) -> None:
    """All given tensors on one device; the first names it."""
    devices = [tensor.device for tensor in tensors.values() if tensor is not None]
    if devices.count(devices[0]) == len(devices):
        return
    (first, device), *others = ((argument, tensor.device) for argument, tensor in tensors.items() if tensor is not None)
    for argument, other in others:
        if other != device:
            raise ValueError(f"{argument} must be on {device} like {first} (got {other})")


def require_separate(**tensors: torch.Tensor) -> None:
    """No two tensors in one storage: an op that writes over both would read what it has written."""
    storages: dict[int, str] = {}
    for argument, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        other = storages.setdefault(tensor.untyped_storage().data_ptr(), argument)
        if other != argument:
            raise ValueError(f"{argument} must not share memory with {other}, both are overwritten")


def require_choice(argument: str, value: object, allowed: Sequence[object]) -> None:
    # 2.0 is equal to 2, and so is a tensor, whose value nobody looks at again.
    if isinstance(value, (float, torch.Tensor)) or value not in allowed:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, allowed))} (got {value!r})")


def require_number(argument: str, value: object) -> None:
    """A Python number, or one that varies in a graph of torch.compile."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{argument} must be a number (got {value!r})")


def require_width(argument: str, value: object, least: int = 1) -> None:
    """A number of columns."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{argument} must be an int (got {value!r})")
    if value < least:
        raise ValueError(f"{argument} must be at least {least} (got {value})")
