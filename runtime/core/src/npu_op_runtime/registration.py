"""Registers an operator's torch ops for every device at once, so that packages import on every machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd import forward_ad

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
    if written := _positions(signature, lambda argument: "!" in argument):
        kernel = _counting(kernel, written)
    implementations = _Implementations(kernel, reference, fake)
    _define(library, namespace, name, schema, implementations)
    packet = getattr(getattr(torch.ops, namespace), name)
    call = _past_dispatcher(packet.default, kernel)
    positions = _positions(signature, _is_float)
    if not positions:
        return call
    others = [argument for argument in _arguments(signature) if not _is_float(argument)]
    packed_schema = f"{name}.packed({', '.join(others)}, Tensor floats) -> {signature.partition(' -> ')[2]}"
    _define(library, namespace, f"{name}.packed", packed_schema, implementations.with_floats_at(positions))
    return _SymbolicFloats(call, packet.packed, positions)


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


def _counting(kernel: Callable[..., Any], written: list[int]) -> Callable[..., Any]:
    """`kernel`, which also counts a version of what it writes over, as PyTorch's own ops do: a Triton kernel tells autograd nothing."""

    def call(*args: Any) -> Any:
        results = kernel(*args)
        # A tensor of inference mode has no version.
        torch.autograd.graph.increment_version([args[i] for i in written if args[i] is not None and not args[i].is_inference()])
        return results

    return call


def _past_dispatcher(op: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`op`, but straight to its kernel where PyTorch's dispatcher, which takes longer than a launch, has nothing else to do."""

    def call(*args: Any) -> Any:
        return kernel(*args) if _dispatches_to_kernel(args) else op(*args)

    return call


def observed() -> bool:
    """Whether something traces, transforms, differentiates forward or profiles what is called, and must be told of each op."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its memory: no subclass, nor a conjugate or the like that is a mark on it for the dispatcher to work out."""
    known = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    return known and not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())


def _dispatches_to_kernel(args: tuple[Any, ...]) -> bool:
    """Whether nothing observes the call and every tensor is a plain one on a device with kernels."""
    if observed():
        return False
    # `is_plain`, written out: calling it would cost half of what the dispatcher does.
    for arg in args:
        kind = type(arg)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if arg.is_conj() or arg.is_neg() or arg._is_zerotensor() or not (arg.is_cuda or _on_npu(arg)):
                return False
        elif isinstance(arg, torch.Tensor):
            return False
    return True


def _on_npu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "npu"


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
            if type(args[i]) is not float:
                break
        else:
            return self._default(*args)
        if not any(isinstance(args[i], torch.SymFloat) for i in self._positions):
            # An int or a number of NumPy becomes a float, as the dispatcher, which the call may go past, would have it.
            return self._default(
                *[float(one) if i in self._positions and isinstance(one, (int, float)) else one for i, one in enumerate(args)]
            )
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


def _arguments(signature: str) -> list[str]:
    """Type and name of each argument; `signature` is a schema behind its opening parenthesis."""
    return [argument.strip() for argument in signature.partition(" -> ")[0].rpartition(")")[0].split(",")]


def _positions(signature: str, holds: Callable[[str], bool]) -> list[int]:
    return [i for i, argument in enumerate(_arguments(signature)) if holds(argument)]


def _is_float(argument: str) -> bool:
    return argument.startswith("float ")


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
