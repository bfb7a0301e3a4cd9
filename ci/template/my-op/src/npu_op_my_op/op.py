"""The registered ops of MyOp, its autograd Function and the public function."""

from __future__ import annotations

import functools

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_tensor
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.elementwise import launch_elementwise
from npu_op_runtime.registration import reference_gradients, register_op
from npu_op_runtime.tiling import Buffer

from .reference import my_op_reference

_KERNELS = "npu_op_my_op.kernel"


def my_op(x: torch.Tensor, *, implementation: str | None = None) -> torch.Tensor:
    """x * sigmoid(x), computed in fp32 and rounded once.

    Args:
        x: fp16, bf16 or fp32, any layout whose last dimension is contiguous.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        Shape, dtype and device of x. Differentiable in x.

    Raises:
        TypeError, ValueError: an argument of the wrong type or dtype; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    chosen = choose(x, implementation)
    if chosen == "eager":
        return my_op_reference(x)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no fused op for it")
    if tracked(x):
        return _MyOp.apply(x)
    return my_op_forward(x)


class _MyOp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return my_op_forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return my_op_backward(dy, *ctx.saved_tensors)


# The buffers are those of kernel.py; the compile gate proves the sums. A half-precision stream has an fp32 copy at work.
@functools.cache
def _buffers(itemsize: int, streams: int) -> tuple[Buffer, ...]:
    return (Buffer(itemsize, streamed=True),) * streams + (Buffer(4),) * (streams + 1)


def _forward_kernel(x):
    y = torch.empty_like(x)
    launch_elementwise(_KERNELS, "my_op_forward", (x,), (y,), _buffers(x.element_size(), 2))
    return y


def _forward_reference(x):
    return torch.empty_like(x).copy_(my_op_reference(x))


def _backward_kernel(dy, x):
    dx = torch.empty_like(x)
    launch_elementwise(_KERNELS, "my_op_backward", (dy, x), (dx,), _buffers(x.element_size(), 3))
    return dx


def _backward_reference(dy, x):
    (gradient,) = reference_gradients(my_op_reference, (x,), dy, (True,))
    return torch.empty_like(x).copy_(gradient)


my_op_forward = register_op(
    "npu_op_my_op",
    "forward(Tensor x) -> Tensor",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=torch.empty_like,
)
my_op_backward = register_op(
    "npu_op_my_op",
    "backward(Tensor dy, Tensor x) -> Tensor",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=lambda dy, x: torch.empty_like(x),
)
