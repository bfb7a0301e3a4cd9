"""Registers an operator's torch ops for every device at once, so that packages import on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .device import kernels_on_cpu

_libraries: list[torch.library.Library] = []  # a Library that is collected unregisters its ops


def register_op(
    namespace: str,
    schema: str,
    *,
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    fake: Callable[..., Any],
) -> Any:
    """Defines `torch.ops.<namespace>.<name>` and returns its default overload.

    `kernel` launches Triton kernels and serves NPU (PrivateUse1) and CUDA tensors, and CPU tensors under the interpreter or
    the lab's offline compiler; `reference` serves CPU tensors otherwise; `fake` gives shapes, dtypes and strides.

    Raises:
        RuntimeError: the op exists already (two copies of the package in one process).
    """
    name = schema.partition("(")[0]
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, kernel, "PrivateUse1")
    library.impl(name, kernel, "CUDA")

    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        return (kernel if kernels_on_cpu() else reference)(*args, **kwargs)

    library.impl(name, on_cpu, "CPU")
    torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
    _libraries.append(library)
    return getattr(getattr(torch.ops, namespace), name).default


def reference_gradients(
    formula: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor | None, ...], gradient: torch.Tensor, needed: tuple[bool, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of `formula(*inputs)` by autograd through the reference, for the inputs that are `needed` (None elsewhere)."""
    # A dispatch mode (opcheck, FlopCounterMode, selective checkpointing) calls the op with autograd switched off in the dispatcher.
    recording = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with torch.enable_grad(), recording:
        leaves = [None if tensor is None else tensor.detach().requires_grad_(need) for tensor, need in zip(inputs, needed)]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = iter(torch.autograd.grad(formula(*leaves), wanted, gradient))
    return tuple(next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves)
