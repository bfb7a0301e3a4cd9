"""The registered ops of LayerNorm, their autograd Function and the public function."""

from __future__ import annotations

import dataclasses
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
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer, RowPlan, plan_rows, plan_tall, programs

from .reference import layer_norm_reference

_KERNELS = "npu_op_layernorm.kernel"

# Pieces of each of several rows in a tile forward: the tree of a reduction over an eighth has three levels less, and vectors of a value per
# piece put operands that would meet in a bank group of UB apart. Pieces below two beats of the vector unit (64 fp32 each) reduce slowly.
_PIECES = 8
_BEAT = 64


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension, computed in fp32 and rounded once.

    The variance is that of the centred row, so a mean far above the deviations costs no digits.

    Args:
        x: (..., hidden_size), fp16, bf16 or fp32, any layout whose last dimension is contiguous.
        weight, bias: (hidden_size,), fp16, bf16 or fp32 (may differ from x), or None.
        eps: added to the variance.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        Shape, dtype and device of x. Differentiable in x, weight and bias; arithmetic is fp32 whatever autocast says.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension (got a scalar)")
    for argument, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            require_tensor(argument, parameter)
            require_dtype(argument, parameter)
            require_shape(argument, parameter, x.shape[-1:])
    require_number("eps", eps)
    require_same_device(x=x, weight=weight, bias=bias)
    chosen = choose(x, implementation)
    if chosen == "eager":
        return layer_norm_reference(x, weight, bias, eps)
    if chosen == "vendor":
        raise NotImplementedError(
            "implementation='vendor' cannot run: torch_npu has no LayerNorm besides torch.nn.functional.layer_norm; use 'eager'"
        )
    return layer_norm_differentiable(x, weight, bias, eps)


def _differentiable(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    if tracked(x, weight, bias):
        return _LayerNorm.apply(x, weight, bias, eps)
    return layer_norm_forward(x, weight, bias, eps, False)[0]


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y, mean, rstd = layer_norm_forward(x, weight, bias, eps, True)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        needed = ctx.needs_input_grad[:3]
        x, weight, bias, mean, rstd = ctx.saved_tensors
        dx, dparameters = layer_norm_backward(dy, x, weight, bias, mean, rstd, ctx.eps, *needed)
        sums = iter(dparameters)
        gradients = [next(sums).to(parameter.dtype) if need else None for parameter, need in zip((weight, bias), needed[1:])]
        return dx if needed[0] else None, *gradients, None


# The buffers are those of kernel.py. Work tiles share memory with dead buffers; the compile gate proves the sums.
@functools.cache
def _forward_plan(target: Target, n_cols: int, itemsize: int, weight_itemsize: int, bias_itemsize: int) -> RowPlan:
    stream = Buffer(itemsize, streamed=True)
    # What a parameter is loaded into is dead once it is fp32.
    parameters = tuple(Buffer(4, "columns") for itemsize in (weight_itemsize, bias_itemsize) if itemsize)
    vectors = (*parameters, *(Buffer(UB_BLOCK_BYTES, "rows", streamed=True),) * 2)
    resident = (stream, stream, Buffer(4), Buffer(4), *vectors)
    roomy = (stream, Buffer(4, streamed=True), Buffer(4), Buffer(4), *vectors)
    plan = plan_rows(target, n_cols, resident, _column_tiles(2, itemsize), roomy=roomy)
    whole_beats = n_cols >= 2 * _PIECES * _BEAT and n_cols % (_PIECES * _BEAT) == 0
    if target.backend != "cuda" and plan.resident and plan.rows > 1 and whole_beats:
        return dataclasses.replace(plan, fold=_PIECES, cols=n_cols // _PIECES)
    return plan


@functools.cache
def _backward_plan(target: Target, n_cols: int, itemsize: int, weight_itemsize: int) -> RowPlan:
    stream = Buffer(itemsize, streamed=True)
    # Of rows that are not dense each value of mean and rstd takes a block of UB.
    vectors = (*(Buffer(4, "columns"),) * (3 if weight_itemsize else 2), *(Buffer(UB_BLOCK_BYTES, "rows", streamed=True),) * 2)
    folded = (*(stream,) * 3, Buffer(4), Buffer(4), *vectors)
    # Sums over several rows fold into a scratch of their own and end in vectors of their own.
    several = (*folded, Buffer(4), *(Buffer(4, "columns"),) * 2)
    plan = plan_rows(target, n_cols, several, _column_tiles(3, itemsize))
    plan = plan if plan.resident else plan_rows(target, n_cols, folded, _column_tiles(3, itemsize))
    # The columns' share: weight and partial sums come and go as streams, and are computed with.
    wide = (*(stream,) * 3, *(Buffer(4),) * 3, *(Buffer(4, "columns"),) * 9, *(Buffer(UB_BLOCK_BYTES, "rows", streamed=True),) * 2)
    return plan if plan.resident else plan_tall(target, n_cols, wide)


def _column_tiles(streams: int, itemsize: int) -> tuple[Buffer, ...]:
    # Parameters' or partial sums' column tiles come on top of the streams and of what is computed.
    return (*(Buffer(itemsize, streamed=True),) * streams, *(Buffer(4),) * 3, *(Buffer(4, "columns", streamed=True),) * 4)


def _forward_kernel(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, save: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, mean, rstd = _forward_fake(x, weight, bias, eps, save)
    if x.numel() == 0:
        return y, mean, rstd
    target = target_of(x)
    # The kernel walks parameters with stride 1; a row of a matrix, say, has another.
    weight = None if weight is None else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    rows = rows_of((x,), (y, mean, rstd) if save else (y,))
    x_in, y_out, mean_out, rstd_out = (*rows.tensors, mean, rstd)[:4]
    run = _forward_launch(target, x.shape[-1], dtypes_of(x, weight, bias), rows.numbers, rows.dense, eps, save)
    run(x_in, weight, bias, y_out, mean_out, rstd_out)
    rows.write_back()
    return y, mean, rstd


# Kept, because working it out takes longer than the rest of a launch; every number of rows has one of its own.
@functools.lru_cache(maxsize=4096)
def _forward_launch(
    target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...], dense: bool, eps: float, save: bool
) -> Launch:
    """For x, weight and bias of these dtypes."""
    plan = _forward_plan(target, n_cols, *map(itemsize_of, dtypes))
    outer, middle, inner = numbers[:3]
    # Mean and rstd have the same strides.
    numbers = (*numbers, 0, 0, 0)[:12]
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "ONE_BLOCK": outer * middle == 1}
    constants |= {"HAS_WEIGHT": dtypes[1] is not None, "HAS_BIAS": dtypes[2] is not None, "SAVE": save}
    name = "layer_norm_forward_wide_kernel"
    if plan.resident:
        name = "layer_norm_forward_kernel"
        constants |= {"FOLD": plan.fold, "DENSE": dense, "ONE_TILE": target.backend == "cuda"}
    grid = programs(target, plan.row_tiles(outer * middle, inner), persistent=False)
    return Launch(_KERNELS, name, grid, target, (*numbers, eps), num_warps=plan.num_warps, **constants)


def _forward_reference(x, weight, bias, eps, save):
    y, mean, rstd = _forward_fake(x, weight, bias, eps, save)
    y.copy_(layer_norm_reference(x, weight, bias, eps))
    return y, mean.fill_(0), rstd.fill_(0)


def _forward_fake(x, weight, bias, eps, save):
    y = torch.empty_like(x)
    if not save:
        return y, x.new_empty(0, dtype=torch.float32), x.new_empty(0, dtype=torch.float32)
    if x.is_contiguous():
        shape = (*x.shape[:-1], 1)
        return y, x.new_empty(shape, dtype=torch.float32), x.new_empty(shape, dtype=torch.float32)
    # In the order of x's own rows, so that a row's statistics lie at a stride that no batch size changes.
    like = x[..., :1]
    return y, torch.empty_like(like, dtype=torch.float32), torch.empty_like(like, dtype=torch.float32)


def _backward_kernel(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor, rstd: torch.Tensor,
    eps: float, need_dx: bool, need_dweight: bool, need_dbias: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    if x.numel() == 0:
        dx, dparameters = _backward_fake(dy, x, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias)
        return dx, dparameters.zero_()
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    target = target_of(x)
    weight = None if weight is None else weight.contiguous()
    rows = rows_of((x, dy, mean, rstd), (dx,) if need_dx else ())
    x_in, dy_in, mean_in, rstd_in = rows.tensors[:4]
    needs = need_dx, need_dweight, need_dbias
    run, grid = _backward_launch(target, x.shape[-1], dtypes_of(x, weight, dy), rows.numbers, rows.dense, needs)
    sums = need_dweight + need_dbias
    partials = x.new_empty((grid, sums * x.shape[-1]), dtype=torch.float32)
    run(x_in, weight, dy_in, mean_in, rstd_in, rows.tensors[-1] if need_dx else None, partials)
    rows.write_back()
    dtype = sums_dtype((weight, need_dweight), (bias, need_dbias))
    if not sums:
        return dx, x.new_empty((0, x.shape[-1]), dtype=dtype)
    return dx, sum_partials(partials, dtype, target).view(sums, x.shape[-1])


@functools.lru_cache(maxsize=4096)
def _backward_launch(
    target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...], dense: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Launch, int]:  # fmt: skip
    """The launch for x, weight and dy of these dtypes, and how many programs it has: rows of partial sums."""
    plan = _backward_plan(target, n_cols, *map(itemsize_of, dtypes[:2]))
    (outer, middle, inner), strides = numbers[:3], numbers[3:]
    # Mean and rstd have the same strides, and come behind dx.
    x_and_dy, statistics, dx = strides[:6], strides[6:9], (*strides, 0, 0, 0)[12:15]
    grid = programs(target, plan.row_tiles(outer * middle, inner), persistent=True)
    constants = {
        "n_cols": n_cols,
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "ONE_BLOCK": outer * middle == 1,
        "HAS_WEIGHT": dtypes[1] is not None,
    }
    constants |= dict(zip(("NEED_DX", "NEED_DWEIGHT", "NEED_DBIAS"), needs))
    constants |= {"FOLD": plan.fold, "DENSE": dense} if plan.resident else {"BARRIER": target.backend == "cuda"}
    name = "layer_norm_backward_kernel" if plan.resident else "layer_norm_backward_wide_kernel"
    numbers = (outer, middle, inner, *x_and_dy, *dx, *statistics)
    return Launch(_KERNELS, name, grid, target, numbers, num_warps=plan.num_warps, **constants), grid


def _backward_reference(dy, x, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias):
    dx, dparameters = _backward_fake(dy, x, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias)

    def formula(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        return layer_norm_reference(x, weight, bias, eps)

    gradients = reference_gradients(formula, (x, weight, bias), dy, (need_dx, need_dweight, need_dbias))
    for out, gradient in zip((*([dx] if need_dx else []), *dparameters), (g for g in gradients if g is not None)):
        out.copy_(gradient)
    return dx, dparameters


def _backward_fake(dy, x, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias):
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    return dx, x.new_empty((need_dweight + need_dbias, x.shape[-1]), dtype=sums_dtype((weight, need_dweight), (bias, need_dbias)))


layer_norm_forward = register_op(
    "npu_op_layernorm",
    "forward(Tensor x, Tensor? weight, Tensor? bias, float eps, bool save) -> (Tensor y, Tensor mean, Tensor rstd)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
layer_norm_backward = register_op(
    "npu_op_layernorm",
    "backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd, float eps, bool need_dx, bool need_dweight,"
    " bool need_dbias) -> (Tensor dx, Tensor dparameters)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
layer_norm_differentiable = register_composite(
    "npu_op_layernorm", "layer_norm(Tensor x, Tensor? weight, Tensor? bias, Scalar eps) -> Tensor", _differentiable
)
