"""What the rotary operators share: registered ops, their autograd Function, and launches kept for calls like earlier ones.

The gradient of a rotation is the transposed rotation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from .autograd import once_differentiable, tracked
from .device import in_cuda_form
from .dispatch import choose
from .inplace import overwrite
from .launch import Launch
from .registration import is_plain, observed, register_op
from .rotary import launch_rotation, require_overwritable, rotation_of

Rotated = tuple[torch.Tensor, torch.Tensor | None]

_MAX_KEPT = 4096  # every number of tokens has an entry of its own


def register_rotation(
    namespace: str,
    arguments: str,
    *,
    check: Callable[..., None],
    rotation: Callable[..., dict[str, Any]],
    formula: Callable[..., Rotated],
    transposed: Callable[..., tuple[Any, ...]],
    vendor: Callable[..., Rotated],
    prepared: Callable[..., tuple[Any, ...]] = lambda *given: given,
) -> Callable[..., Rotated]:
    """Registers `rotate` and `rotate_`, which writes over q and k, and returns `apply(q, k, *given, inplace=..., implementation=...)`.

    Args:
        namespace: of the ops.
        arguments: what follows q and k in their schemas, tensors first: constants that are not differentiated.
        check: `check(q, k, *given, inplace)` raises for wrong arguments; asked again only for others than passed before.
        rotation: `rotation(q, *arguments)` are the arguments of `launch_rotation` but `heads` and `inverse`; its `angles` are the tensors
            of `arguments`, and nothing else in it depends on more than shapes, dtypes and the device.
        formula: `formula(q, k, *arguments)`, the reference, which takes what `apply` is given too.
        transposed: `transposed(*arguments)` are those with which `formula` is the transposed rotation.
        vendor: `vendor(q, k, *given)` is the fused op of the vendor, or says why there is none.
        prepared: `prepared(*given)` are `arguments`, where `apply` takes others.
    """
    tensors = arguments.count("Tensor ")

    def fake(q: torch.Tensor, k: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(q), q.new_empty(0) if k is None else torch.empty_like(k)

    def kernel(q: torch.Tensor, k: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        *given, inverse = rest
        q_out, k_out = fake(q, k)
        launch_rotation(heads=(q, k, q_out, None if k is None else k_out), inverse=inverse, **rotation(q, *given))
        return q_out, k_out

    def reference(q: torch.Tensor, k: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        *given, inverse = rest
        outputs = fake(q, k)
        overwrite(outputs, formula(q, k, *(transposed(*given) if inverse else given)))
        return outputs

    rotate = register_op(
        namespace,
        f"rotate(Tensor q, Tensor? k, {arguments}, bool inverse) -> (Tensor q_out, Tensor k_out)",
        kernel=kernel,
        reference=reference,
        fake=fake,
    )
    rotate_inplace = register_op(
        namespace,
        f"rotate_(Tensor(a!) q, Tensor(b!)? k, {arguments}) -> ()",
        kernel=lambda q, k, *rest: launch_rotation(heads=(q, k, q, k), inverse=False, **rotation(q, *rest)),
        reference=lambda q, k, *rest: overwrite((q, k), formula(q, k, *rest)),
        fake=lambda *arguments: None,
    )
    # By everything that a launch depends on and that `check` looks at: of forward, of calls that passed it.
    kept: dict[tuple[Any, ...], Launch] = {}

    def keep(key: tuple[Any, ...] | None, q: torch.Tensor, k: torch.Tensor | None, rest: tuple[Any, ...], inverse: bool) -> Launch | None:
        """The launch for a call; none without a key, of anything but plain tensors, and of what must be copied first."""
        if key is None or not all(is_plain(tensor) and tensor.numel() for tensor in (q, k, *rest[:tensors]) if tensor is not None):
            return None
        outputs = torch.empty_like(q), None if k is None else torch.empty_like(k)
        run = rotation_of(heads=(q, k, *outputs), inverse=inverse, **rotation(q, *rest))
        if run is not None:
            if len(kept) >= _MAX_KEPT:  # more, where threads have added theirs at once
                kept.clear()
            kept[key] = run
        return run

    def call(q: torch.Tensor, k: torch.Tensor | None, rest: tuple[Any, ...], inverse: bool, run: Launch | None) -> Rotated:
        if run is None:
            q_out, k_out = rotate(q, k, *rest, inverse)
            return q_out, None if k is None else k_out
        outputs = torch.empty_like(q), None if k is None else torch.empty_like(k)
        run(q, k, *outputs, *rest[:tensors])
        return outputs

    class Rotation(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor | None, inplace: bool, rest: tuple[Any, ...], run: Launch | None) -> Rotated:
            ctx.save_for_backward(*rest[:tensors])
            ctx.options = rest[tensors:]
            ctx.set_materialize_grads(False)
            if inplace:
                rotate_inplace(q, k, *rest)
                results = q, k
                ctx.mark_dirty(*[tensor for tensor in results if tensor is not None])
            else:
                results = call(q, k, rest, False, run)
            q_out, k_out = results
            need_dq, need_dk, *_ = ctx.needs_input_grad
            if k_out is not None and not need_dk:
                ctx.mark_non_differentiable(k_out)
            elif not need_dq:
                ctx.mark_non_differentiable(q_out)
            return results

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, dq: torch.Tensor | None, dk: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            rest = (*ctx.saved_tensors, *ctx.options)
            dq, dk = (gradient if needed else None for gradient, needed in zip((dq, dk), ctx.needs_input_grad))
            if dq is None and dk is not None:
                dk, _ = turned_back(dk, None, rest)
            elif dq is not None:
                dq, dk = turned_back(dq, dk, rest)
            return dq, dk, None, None, None

    def turned_back(dq: torch.Tensor, dk: torch.Tensor | None, rest: tuple[Any, ...]) -> Rotated:
        key = _key(True, dq, dk, rest)
        return call(dq, dk, rest, True, _found(kept, key) or keep(key, dq, dk, rest, True))

    def rotated(q: torch.Tensor, k: torch.Tensor | None, rest: tuple[Any, ...], inplace: bool, run: Launch | None) -> Rotated:
        if not tracked(q, k):
            if not inplace:
                return call(q, k, rest, False, run)
            rotate_inplace(q, k, *rest)
            return q, k
        # AOTAutograd takes what a Function writes over an input of the graph for a write under no_grad: the gradient would pass unrotated.
        copied = inplace and torch.compiler.is_compiling()
        results = cast(Rotated, Rotation.apply(q, k, inplace and not copied, rest, run))  # type: ignore[no-untyped-call]  # so in torch
        if not copied:
            return results
        overwrite((q, k), results)
        return q, k

    def apply(q: torch.Tensor, k: torch.Tensor | None, *given: Any, inplace: bool, implementation: str | None) -> Rotated:
        key = _key(False, q, k, given) if inplace is False and implementation is None else None
        run = _found(kept, key)
        if run is not None:
            return rotated(q, k, prepared(*given), False, run)
        check(q, k, *given, inplace)
        if inplace:
            require_overwritable(q=q, k=k)
        chosen = choose(q, implementation)
        if chosen == "triton":
            rest = prepared(*given)
            return rotated(q, k, rest, inplace, keep(key, q, k, rest, False))
        results = (formula if chosen == "eager" else vendor)(q, k, *given)
        if not inplace:
            return results
        overwrite((q, k), results)
        return q, k

    return apply


def _key(inverse: bool, q: Any, k: Any, rest: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a launch is kept by: of each tensor all but its values, and what else there is with its type, since 2 is equal to 2.0.

    None for a call that is observed or not on CUDA.
    """
    # On an NPU pairs may have to be taken for words, and Triton's own launch takes most of the time.
    on_cuda = in_cuda_form() or (isinstance(q, torch.Tensor) and q.is_cuda)
    if not on_cuda or observed():
        return None
    try:
        return (in_cuda_form(), inverse, *[
            (
                type(one), one.shape, one.stride(), one.dtype, one.device, one.requires_grad,
                one.is_conj(), one.is_neg(), one._is_zerotensor(),
            )
            if isinstance(one, torch.Tensor) else (type(one), one)
            for one in (q, k, *rest)
        ])  # fmt: skip
    except RuntimeError:  # a sparse tensor has no strides; the check names it
        return None


def _found(kept: dict[tuple[Any, ...], Launch], key: tuple[Any, ...] | None) -> Launch | None:
    try:
        return None if key is None else kept.get(key)
    except TypeError:  # a list, say, has no hash; the check names it
        return None
