"""The registered ops of a rotary operator and its autograd Function: the gradient of a rotation is the transposed rotation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from .autograd import once_differentiable, tracked
from .inplace import overwrite
from .registration import register_op

Rotated = tuple[torch.Tensor, torch.Tensor | None]


def register_rotation(
    namespace: str,
    arguments: str,
    *,
    launch: Callable[..., None],
    formula: Callable[..., Rotated],
    transposed: Callable[..., tuple[Any, ...]],
) -> Callable[..., Rotated]:
    """Registers `rotate` and `rotate_`, which writes over q and k, and returns `rotated(q, k, *arguments, inplace=...)`.

    Args:
        namespace: of the ops.
        arguments: what follows q and k in their schemas, tensors first: constants that are not differentiated.
        launch: `launch(q, k, q_out, k_out, *arguments, inverse)` launches the kernel; `inverse` asks for the transposed rotation, and
            outputs may be inputs.
        formula: `formula(q, k, *arguments)`, the reference.
        transposed: `transposed(*arguments)` are those with which `formula` is the transposed rotation.
    """
    tensors = arguments.count("Tensor ")

    def fake(q: torch.Tensor, k: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(q), q.new_empty(0) if k is None else torch.empty_like(k)

    def kernel(q: torch.Tensor, k: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = fake(q, k)
        launch(q, k, outputs[0], None if k is None else outputs[1], *rest)
        return outputs

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
        kernel=lambda q, k, *rest: launch(q, k, q, k, *rest, False),
        reference=lambda q, k, *rest: overwrite((q, k), formula(q, k, *rest)),
        fake=lambda *arguments: None,
    )

    def call(q: torch.Tensor, k: torch.Tensor | None, *rest: Any, inplace: bool) -> Rotated:
        if inplace:
            rotate_inplace(q, k, *rest)
            return q, k
        q_out, k_out = rotate(q, k, *rest, False)
        return q_out, None if k is None else k_out

    class Rotation(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor | None, inplace: bool, rest: tuple[Any, ...]) -> Rotated:
            ctx.save_for_backward(*rest[:tensors])
            ctx.options = rest[tensors:]
            ctx.set_materialize_grads(False)
            results = q_out, k_out = call(q, k, *rest, inplace=inplace)
            if inplace:
                ctx.mark_dirty(*[tensor for tensor in results if tensor is not None])
            need_dq, need_dk, *_ = ctx.needs_input_grad
            if k_out is not None and not need_dk:
                ctx.mark_non_differentiable(k_out)
            elif not need_dq:
                ctx.mark_non_differentiable(q_out)
            return results

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, dq: torch.Tensor | None, dk: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            rest = (*ctx.saved_tensors, *ctx.options, True)
            dq, dk = (gradient if needed else None for gradient, needed in zip((dq, dk), ctx.needs_input_grad))
            if dq is None and dk is not None:
                dk, _ = rotate(dk, None, *rest)
            elif dq is not None:
                dq, dk_out = rotate(dq, dk, *rest)
                dk = None if dk is None else dk_out
            return dq, dk, None, None

    def rotated(q: torch.Tensor, k: torch.Tensor | None, *rest: Any, inplace: bool) -> Rotated:
        if not tracked(q, k):
            return call(q, k, *rest, inplace=inplace)
        # AOTAutograd takes what a Function writes over an input of the graph for a write under no_grad: the gradient would pass unrotated.
        copied = inplace and torch.compiler.is_compiling()
        results = cast(Rotated, Rotation.apply(q, k, inplace and not copied, rest))  # type: ignore[no-untyped-call]  # so in torch
        if not copied:
            return results
        overwrite((q, k), results)
        return q, k

    return rotated
