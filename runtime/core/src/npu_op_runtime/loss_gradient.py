"""Backward of a loss whose gradient the forward has written already: multiply it by the incoming gradient of the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .device import target_of
from .launch import launch, load_kernels
from .registration import register_op
from .tiling import Buffer, plan_flat, programs

_KERNELS = "npu_op_runtime.loss_gradient_kernel"

# The integer type of the size of a dtype, and its bits of 1.0.
_ONE = {torch.float32: (torch.int32, 0x3F800000), torch.bfloat16: (torch.int16, 0x3F80), torch.float16: (torch.int16, 0x3C00)}

# CUDA: programs per multiprocessor: few, because a factor of 1 leaves them nothing to do, and enough for full bandwidth.
_CUDA_PROGRAMS = 8


def asked_again() -> bool:
    """Whether what the running backward has saved may be needed after it: with retain_graph=True, and in a graph of torch.compile."""
    # Retaining the graph is known to autograd's engine only while it runs backward.
    return torch.compiler.is_compiling() or torch._C._autograd._get_current_graph_task_keep_graph()


def times_incoming(gradients: Sequence[torch.Tensor | None], dloss: torch.Tensor) -> list[torch.Tensor | None]:
    """Each gradient times the 0-d `dloss`; for the backward of an autograd Function that saved them.

    They are overwritten, and not even read where dloss is 1 (the device decides), unless they may be asked for again: with
    retain_graph=True, and in a graph of torch.compile, new tensors are returned.
    """
    if asked_again():
        return [None if gradient is None else scaled(gradient, dloss) for gradient in gradients]
    for gradient in gradients:
        if gradient is not None:
            scale_(gradient, dloss)
    return list(gradients)


def _run(gradient: torch.Tensor, dloss: torch.Tensor, out: torch.Tensor, inplace: bool) -> None:
    if gradient.numel() == 0:
        return
    target = target_of(gradient)
    plan = plan_flat(target, (Buffer(gradient.element_size(), streamed=True),) * 2 + (Buffer(4),) * 2)
    grid = min(programs(target, -(-gradient.numel() // plan.block), persistent=False), _CUDA_PROGRAMS * target.cores)
    kernel = load_kernels(_KERNELS, target.backend).scale_kernel
    bits, one = _ONE[dloss.dtype]
    launch(
        kernel, grid, target, gradient, gradient, dloss, dloss.view(bits), out, gradient.numel(),
        num_warps=plan.num_warps, BLOCK=plan.block, INPLACE=inplace, ONE_BITS=one,
    )  # fmt: skip


def _scaled_kernel(gradient: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(gradient)
    _run(gradient, dloss, out, inplace=False)
    return out


def _scaled_reference(gradient: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
    return gradient * dloss.to(gradient.dtype)


def _scale_kernel(gradient: torch.Tensor, dloss: torch.Tensor) -> None:
    _run(gradient, dloss, gradient, inplace=True)


def _scale_reference(gradient: torch.Tensor, dloss: torch.Tensor) -> None:
    gradient.mul_(dloss)


scaled = register_op(
    "npu_op_runtime",
    "scaled(Tensor gradient, Tensor dloss) -> Tensor",
    kernel=_scaled_kernel,
    reference=_scaled_reference,
    fake=lambda gradient, dloss: torch.empty_like(gradient),
)
scale_ = register_op(
    "npu_op_runtime",
    "scale_(Tensor(a!) gradient, Tensor dloss) -> ()",
    kernel=_scale_kernel,
    reference=_scale_reference,
    fake=lambda gradient, dloss: None,
)
