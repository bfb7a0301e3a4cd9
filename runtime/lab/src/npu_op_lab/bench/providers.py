"""The implementations that are compared, as functions with the arguments of the operator's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from npu_op_runtime.spec import OperatorSpec

Function = Callable[..., Any]


class Absent(Exception):
    """A provider that cannot run here or has no such operator; the message says why."""


def function_of(spec: OperatorSpec, provider: str) -> Function:
    """The function of a provider.

    Raises:
        Absent: the operator names no such peer.
    """
    if provider == "ours":
        return spec.function
    if provider == "eager":
        return spec.reference
    if provider == "compile":
        return torch.compile(spec.reference)
    if provider not in spec.peers:
        raise Absent(f"{spec.name} names no peer {provider!r}")
    return spec.peers[provider]


def on_ascend(peer: Function) -> Function:
    """A peer that takes Liger-Kernel's operators from `liger_kernel.ops`, given those that Liger uses on an NPU."""

    def call(*args: Any, **kwargs: Any) -> Any:
        from ..peers.liger import ascend_operators

        with mock.patch.multiple("liger_kernel.ops", create=True, **ascend_operators()):
            return peer(*args, **kwargs)

    return call
