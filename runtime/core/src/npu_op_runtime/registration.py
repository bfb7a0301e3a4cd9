"""Registers an operator's torch ops for every device at once, so that packages import on every machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

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
) -> Callable[..., Any]:
    """Defines `torch.ops.<namespace>.<name>` and returns what calls it.

    `kernel` launches Triton kernels and serves NPU (PrivateUse1) and CUDA tensors, and CPU tensors under the interpreter or
    the lab's offline compiler; `reference` serves CPU tensors otherwise; `fake` gives shapes, dtypes and strides.

    Raises:
        RuntimeError: the op exists already (two copies of the package in one process).
    """
    name, _, signature = schema.partition("(")
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    implementations = _Implementations(kernel, reference, fake)
    _define(library, namespace, name, schema, implementations)
    packet = getattr(getattr(torch.ops, namespace), name)
    positions = [i for i, argument in enumerate(signature.partition(")")[0].split(",")) if argument.split()[0] == "float"]
    if not positions:
        return cast("Callable[..., Any]", packet.default)
    packed_schema = f"{name}.packed({', '.join(_without_floats(signature))}, Tensor floats){signature.partition(')')[2]}"
    _define(library, namespace, f"{name}.packed", packed_schema, implementations.with_floats_at(positions))
    return _SymbolicFloats(packet.default, packet.packed, positions)


def register_composite(namespace: str, schema: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives torch.compile one node for the differentiable part of an operator; returns what to call, compiled or not.

    `schema` takes floats as Scalar. Dynamo keeps a float that varies symbolic in such a node, and AOTAutograd traces
    `function` itself with it, where a call of a registered op turns it into a tensor: one graph for all values.
    """
    name = schema.partition("(")[0]
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, function, "CompositeImplicitAutograd")
    op = getattr(getattr(torch.ops, namespace), name).default

    def call(*args: Any) -> Any:
        # Outside of torch.compile the node would only cost a dispatch.
        return op(*args) if torch.compiler.is_compiling() else function(*args)

    return call


@dataclass(frozen=True)
class _Implementations:
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    fake: Callable[..., Any]

    def on_cpu(self, *args: Any) -> Any:
        return (self.kernel if kernels_on_cpu() else self.reference)(*args)

    def with_floats_at(self, positions: list[int]) -> _Implementations:
        """The same, taking the floats as one fp64 tensor after the other arguments."""

        def unpacking(function: Callable[..., Any], values: Callable[[torch.Tensor], list[float]]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                unpacked = list(args[:-1])
                for position, value in zip(positions, values(args[-1])):
                    unpacked.insert(position, value)
                return function(*unpacked)

            return call

        # The tensor lies on the CPU: reading it waits for no device. A fake one has no values, and no shape depends on them.
        def read(floats: torch.Tensor) -> list[float]:
            return cast("list[float]", floats.tolist())

        return _Implementations(
            unpacking(self.kernel, read), unpacking(self.reference, read), unpacking(self.fake, lambda floats: [0.0] * len(positions))
        )


class _SymbolicFloats:
    """Calls an op with Python floats; with symbolic ones, in a graph that serves every value, as a tensor computed from them.

    AOTAutograd specialises a float that reaches an op, so torch.compile would build a graph for each value of eps (as it does
    for torch.nn.functional.rms_norm), but not one that only takes part in tensor arithmetic.
    """

    def __init__(self, default: Callable[..., Any], packed: Callable[..., Any], positions: list[int]) -> None:
        self._default = default
        self._packed = packed
        self._positions = positions

    def __call__(self, *args: Any) -> Any:
        # Not asked of torch.compiler.is_compiling: where AOTAutograd traces a composite op, torch 2.11 says no.
        # A loop, because a generator takes as long as a tenth of the whole call.
        for i in self._positions:
            if isinstance(args[i], torch.SymFloat):
                break
        else:
            return self._default(*args)
        floats = torch.stack([torch.ones((), dtype=torch.float64) * args[i] for i in self._positions])
        return self._packed(*(argument for i, argument in enumerate(args) if i not in self._positions), floats)


def _define(library: torch.library.Library, namespace: str, name: str, schema: str, implementations: _Implementations) -> None:
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key, function in (
        ("PrivateUse1", implementations.kernel),
        ("CUDA", implementations.kernel),
        ("CPU", implementations.on_cpu),
    ):
        library.impl(name, function, key)
    torch.library.register_fake(f"{namespace}::{name}", implementations.fake, lib=library)


def _without_floats(signature: str) -> list[str]:
    return [argument.strip() for argument in signature.partition(")")[0].split(",") if argument.split()[0] != "float"]


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
