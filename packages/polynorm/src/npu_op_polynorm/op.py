"""The registered ops of PolyNorm, their autograd Function and the public function."""

from __future__ import annotations

import functools

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_number, require_same_device, require_shape, require_tensor
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import itemsize_of, require_dtype
from npu_op_runtime.launch import Launch, dtypes_of
from npu_op_runtime.partials import sum_partials, sums_dtype
from npu_op_runtime.registration import reference_gradients, register_composite, register_op
from npu_op_runtime.rows import rows_of
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer, RowPlan, plan_rows, programs

from .reference import poly_norm_reference

_KERNELS = "npu_op_polynorm.kernel"
_VECTORS = (Buffer(UB_BLOCK_BYTES, "rows", streamed=True),) * 3 + (Buffer(4, "rows"),) * 8


def poly_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """w0 * n(x^3) + w1 * n(x^2) + w2 * n(x) + b with n(t) = t / sqrt(mean(t^2) + eps) over the last dimension.

    Args:
        x: (..., hidden_size), fp16, bf16 or fp32, any layout whose last dimension is contiguous. Computed in fp32, rounded once.
        weight: (3,), fp16, bf16 or fp32 (may differ from x). Read on the device, never by the host.
        bias: one element, shape () or (1,), as weight; or None.
        eps: added to each mean square.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        Shape, dtype and device of x. Differentiable in x, weight and bias.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension (got a scalar)")
    require_tensor("weight", weight)
    require_dtype("weight", weight)
    require_shape("weight", weight, (3,))
    if bias is not None:
        require_tensor("bias", bias)
        require_dtype("bias", bias)
        if bias.numel() != 1 or bias.dim() > 1:
            raise ValueError(f"bias must have shape () or (1,) (got {tuple(bias.shape)})")
    require_number("eps", eps)
    require_same_device(x=x, weight=weight, bias=bias)
    chosen = choose(x, implementation)
    if chosen == "eager":
        return poly_norm_reference(x, weight, bias, eps)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no PolyNorm; use 'eager'")
    return poly_norm_differentiable(x, weight, bias, eps)


def _differentiable(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    if tracked(x, weight, bias):
        return _PolyNorm.apply(x, weight, bias, eps)
    return poly_norm_forward(x, weight, bias, eps, False)[0]


class _PolyNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y, *statistics = poly_norm_forward(x, weight, bias, eps, True)
        ctx.save_for_backward(x, weight, bias, *statistics)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        needed = ctx.needs_input_grad[:3]
        x, weight, bias, *statistics = ctx.saved_tensors
        dx, sums = poly_norm_backward(dy, x, weight, bias, *statistics, ctx.eps, *needed)
        dweight = sums[:3].to(weight.dtype) if needed[1] else None
        dbias = sums[-1].to(bias.dtype).view_as(bias) if needed[2] else None
        return dx if needed[0] else None, dweight, dbias, None


# The buffers are those of kernel.py; the compile gate proves the sums. Of rows that are not dense each value per row takes a block of UB.
@functools.cache
def _plan(target: Target, n_cols: int, itemsize: int, streams: int) -> RowPlan:
    stream = (Buffer(itemsize, streamed=True),) * streams
    resident = (*stream, *(Buffer(4),) * 3, *_VECTORS)
    return plan_rows(target, n_cols, resident, (*stream, *(Buffer(4),) * 5, *_VECTORS), roomy=(*resident, Buffer(4)))


@functools.cache
def _backward_plan(target: Target, n_cols: int, itemsize: int) -> tuple[RowPlan, bool]:
    """The plan, and whether its tile, one row in pieces, leaves room for the eight fp32 tiles of the kernel's ROOMY form."""
    buffers = (*(Buffer(itemsize, streamed=True),) * 3, *(Buffer(4),) * 8, *_VECTORS)
    plan = plan_rows(target, n_cols, buffers, buffers)
    return (plan, True) if plan.fold > 1 else (_plan(target, n_cols, itemsize, 3), False)


def _forward_kernel(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, save: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    y, *statistics = _forward_fake(x, weight, bias, eps, save)
    if x.numel() == 0:
        return y, *statistics
    target = target_of(x)
    weight = weight.contiguous()  # the kernel reads its elements side by side
    rows = rows_of((x,), (y, *(statistic.unsqueeze(-1) for statistic in statistics)) if save else (y,))
    x_in, y_out, *statistics_out = rows.tensors if save else (*rows.tensors, *statistics)
    run = _forward_launch(target, x.shape[-1], dtypes_of(x, weight, bias), rows.numbers, rows.dense, eps, save)
    run(x_in, weight, bias, y_out, *statistics_out)
    rows.write_back()
    return y, *statistics


# Kept, because working it out takes longer than the rest of a launch; every number of rows has one of its own.
@functools.lru_cache(maxsize=4096)
def _forward_launch(
    target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...], dense: bool, eps: float, save: bool
) -> Launch:
    """For x, weight and bias of these dtypes."""
    plan = _plan(target, n_cols, itemsize_of(dtypes[0]), 2)
    outer, middle, inner = numbers[:3]
    # The statistics have the same strides.
    numbers = (*numbers, 0, 0, 0)[:12]
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "ONE_BLOCK": outer * middle == 1}
    constants |= {"HAS_BIAS": dtypes[2] is not None, "SAVE": save}
    name = "poly_norm_forward_wide_kernel"
    if plan.resident:
        name = "poly_norm_forward_kernel"
        constants |= {"FOLD": plan.fold, "DENSE": dense, "ONE_TILE": target.backend == "cuda"}
    grid = programs(target, plan.row_tiles(outer * middle, inner), persistent=False)
    return Launch(_KERNELS, name, grid, target, (*numbers, eps), num_warps=plan.num_warps, **constants)


def _forward_reference(x, weight, bias, eps, save):
    y, *statistics = _forward_fake(x, weight, bias, eps, save)
    return y.copy_(poly_norm_reference(x, weight, bias, eps)), *(statistic.fill_(0) for statistic in statistics)


def _forward_fake(x, weight, bias, eps, save):
    # In the order of x's own rows, so that a row's statistics lie at a stride that no batch size changes.
    like = x.new_empty(x.shape[:-1]) if x.is_contiguous() else x[..., 0]
    statistics = (torch.empty_like(like, dtype=torch.float32) if save else x.new_empty(0, dtype=torch.float32) for _ in range(3))
    return torch.empty_like(x), *statistics


def _backward_kernel(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, r1: torch.Tensor, r2: torch.Tensor,
    r3: torch.Tensor, eps: float, need_dx: bool, need_dweight: bool, need_dbias: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dx, sums = _backward_fake(dy, x, weight, bias, r1, r2, r3, eps, need_dx, need_dweight, need_dbias)
    if x.numel() == 0:
        return dx, sums.zero_()
    target = target_of(x)
    weight = weight.contiguous()
    rows = rows_of((x, dy, *(statistic.unsqueeze(-1) for statistic in (r1, r2, r3))), (dx,) if need_dx else ())
    x_in, dy_in, *statistics = rows.tensors[:5]
    needs = need_dx, need_dweight, need_dbias
    run, grid = _backward_launch(target, x.shape[-1], dtypes_of(x, weight, dy), rows.numbers, rows.dense, needs)
    partials = x.new_empty((grid, sums.numel()), dtype=torch.float32)
    run(x_in, weight, dy_in, *statistics, rows.tensors[5] if need_dx else None, partials)
    rows.write_back()
    return dx, sum_partials(partials, sums.dtype, target) if need_dweight or need_dbias else sums


@functools.lru_cache(maxsize=4096)
def _backward_launch(
    target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...], dense: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Launch, int]:  # fmt: skip
    """The launch for x, weight and dy of these dtypes, and how many programs it has: rows of partial sums."""
    plan, roomy = _backward_plan(target, n_cols, itemsize_of(dtypes[0]))
    (outer, middle, inner), strides = numbers[:3], numbers[3:]
    # The three statistics have the same strides, and come before dx's.
    x_and_dy, statistics, dx = strides[:6], strides[6:9], (*strides, 0, 0, 0)[15:18]
    grid = programs(target, plan.row_tiles(outer * middle, inner), persistent=True)
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "ONE_BLOCK": outer * middle == 1}
    constants |= dict(zip(("NEED_DX", "NEED_DWEIGHT", "NEED_DBIAS"), needs))
    name = "poly_norm_backward_wide_kernel"
    if plan.resident:
        name = "poly_norm_backward_kernel"
        constants |= {"FOLD": plan.fold, "DENSE": dense, "ROOMY": roomy}
    numbers = (outer, middle, inner, *x_and_dy, *dx, *statistics)
    return Launch(_KERNELS, name, grid, target, numbers, num_warps=plan.num_warps, **constants), grid


def _backward_reference(dy, x, weight, bias, r1, r2, r3, eps, need_dx, need_dweight, need_dbias):
    dx, sums = _backward_fake(dy, x, weight, bias, r1, r2, r3, eps, need_dx, need_dweight, need_dbias)

    def formula(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return poly_norm_reference(x, weight, bias, eps)

    dx_found, dweight, dbias = reference_gradients(formula, (x, weight, bias), dy, (need_dx, need_dweight, need_dbias))
    for out, gradient in ((dx, dx_found), (sums[:3], dweight), (sums[-1:], dbias)):
        if gradient is not None:
            out.copy_(gradient)
    return dx, sums


def _backward_fake(dy, x, weight, bias, r1, r2, r3, eps, need_dx, need_dweight, need_dbias):
    # Gradients of w0, w1, w2 and the bias.
    sums = x.new_empty(3 * need_dweight + need_dbias, dtype=sums_dtype((weight, need_dweight), (bias, need_dbias)))
    return torch.empty_like(x) if need_dx else x.new_empty(0), sums


poly_norm_forward = register_op(
    "npu_op_polynorm",
    "forward(Tensor x, Tensor weight, Tensor? bias, float eps, bool save) -> (Tensor y, Tensor r1, Tensor r2, Tensor r3)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
poly_norm_backward = register_op(
    "npu_op_polynorm",
    "backward(Tensor dy, Tensor x, Tensor weight, Tensor? bias, Tensor r1, Tensor r2, Tensor r3, float eps, bool need_dx,"
    " bool need_dweight, bool need_dbias) -> (Tensor dx, Tensor sums)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
poly_norm_differentiable = register_composite(
    "npu_op_polynorm", "poly_norm(Tensor x, Tensor weight, Tensor? bias, Scalar eps) -> Tensor", _differentiable
)
