"""The registered ops of softmax, its autograd Function and the public function."""

from __future__ import annotations

import functools

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_tensor
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.launch import Launch
from npu_op_runtime.registration import register_op
from npu_op_runtime.rows import rows_of
from npu_op_runtime.tiling import Buffer, RowPlan, plan_rows, programs

from .reference import softmax_reference

_KERNELS = "npu_op_softmax.kernel"


def softmax(x: torch.Tensor, dim: int = -1, *, implementation: str | None = None) -> torch.Tensor:
    """exp(x - max(x)) / sum(exp(x - max(x))) along `dim`, computed in fp32 and rounded once.

    Args:
        x: fp16, bf16 or fp32, any layout. Where `dim` is the last dimension and contiguous, nothing is copied; any other `dim` is
            moved there, which costs one copy of x.
        dim: the dimension that sums to 1.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        Shape, dtype and device of x. Differentiable in x.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype or range; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension (got a scalar)")
    require_dimension(dim)
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim must be a dimension of x, {-x.dim()} to {x.dim() - 1} (got {dim}, x has {x.dim()} dimensions)")
    chosen = choose(x, implementation)
    if chosen == "eager":
        return softmax_reference(x, dim)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no softmax besides torch.softmax; use 'eager'")
    if dim not in (-1, x.dim() - 1):
        return softmax(x.transpose(dim, -1), implementation=implementation).transpose(dim, -1)
    if tracked(x):
        return _Softmax.apply(x)
    return softmax_forward(x)


def require_dimension(dim: object) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int (got {dim!r})")


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = softmax_forward(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return softmax_backward(dy, *ctx.saved_tensors)


# The buffers are those of kernel.py; the compile gate proves the sums. A half-precision stream has an fp32 copy at work.
@functools.cache
def _plan(target: Target, n_cols: int, itemsize: int, streams: int) -> RowPlan:
    stream = (Buffer(itemsize, streamed=True),) * streams
    return plan_rows(target, n_cols, (*stream, Buffer(4), Buffer(4)), (*stream, Buffer(4), Buffer(4), Buffer(4)))


def _run(name: str, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    """Launches `softmax_<name>_kernel`, or the one for rows wider than UB."""
    if output.numel() == 0:
        return output
    rows = rows_of(inputs, (output,))
    run = _launch_of(name, target_of(output), tuple([tensor.dtype for tensor in rows.tensors]), output.shape[-1], rows.numbers, rows.dense)
    run(*rows.tensors)
    rows.write_back()
    return output


# Kept, because working it out takes longer than the rest of a launch; every number of rows has one of its own.
@functools.lru_cache(maxsize=4096)
def _launch_of(name: str, target: Target, dtypes: tuple[torch.dtype, ...], n_cols: int, numbers: tuple[int, ...], dense: bool) -> Launch:
    """For inputs and output of these dtypes."""
    plan = _plan(target, n_cols, dtypes[-1].itemsize, len(dtypes))
    outer, middle, inner = numbers[:3]
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "ONE_BLOCK": outer * middle == 1}
    if plan.resident:
        constants |= {"FOLD": plan.fold, "DENSE": dense}
    return Launch(
        _KERNELS,
        f"softmax_{name}_kernel" if plan.resident else f"softmax_{name}_wide_kernel",
        programs(target, plan.row_tiles(outer * middle, inner), persistent=False),
        target,
        numbers,
        num_warps=plan.num_warps,
        **constants,
    )


def _forward_kernel(x: torch.Tensor) -> torch.Tensor:
    return _run("forward", (x,), torch.empty_like(x))


def _forward_reference(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).copy_(softmax_reference(x))


def _backward_kernel(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _run("backward", (y, dy), torch.empty_like(y))


def _backward_reference(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # What autograd of torch.softmax calls: it needs y and not x.
    return torch.empty_like(y).copy_(torch._softmax_backward_data(dy, y, -1, y.dtype))


softmax_forward = register_op(
    "npu_op_softmax",
    "forward(Tensor x) -> Tensor",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=torch.empty_like,
)
softmax_backward = register_op(
    "npu_op_softmax",
    "backward(Tensor dy, Tensor y) -> Tensor",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=lambda dy, y: torch.empty_like(y),
)
