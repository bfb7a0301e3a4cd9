"""The registered ops of RMSNorm, their autograd Function and the public function."""

from __future__ import annotations

import functools

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice, require_number, require_same_device, require_shape, require_tensor
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import itemsize_of, require_dtype
from npu_op_runtime.launch import Launch, dtypes_of
from npu_op_runtime.partials import sum_partials
from npu_op_runtime.registration import reference_gradients, register_composite, register_op
from npu_op_runtime.rows import rows_of
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer, RowPlan, plan_rows, plan_tall, programs

from .reference import rms_norm_reference
from .vendor import rms_norm_vendor

CASTINGS = ("llama", "gemma", "none")
_KERNELS = "npu_op_rmsnorm.kernel"


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    casting: str = "llama",
    implementation: str | None = None,
) -> torch.Tensor:
    """y = x / sqrt(mean(x^2) + eps) * (offset + weight) over the last dimension.

    Args:
        x: (..., hidden_size), fp16, bf16 or fp32, any layout whose last dimension is contiguous.
        weight: (hidden_size,), fp16, bf16 or fp32 (may differ from x), or None.
        eps: added to the mean square.
        offset: added to the weight (1.0 for Gemma).
        casting: "llama" normalises in fp32, casts to x.dtype, multiplies by the weight; "gemma" casts once at the end;
            "none" rounds to x.dtype after every operation.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton", "vendor"
            (torch_npu.npu_rms_norm) or "eager".

    Returns:
        Shape, dtype and device of x. Differentiable in x and weight; arithmetic is fp32 whatever autocast says.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension (got a scalar)")
    if weight is not None:
        require_tensor("weight", weight)
        require_dtype("weight", weight)
        require_shape("weight", weight, x.shape[-1:])
        require_same_device(x=x, weight=weight)
    require_number("eps", eps)
    require_number("offset", offset)
    require_choice("casting", casting, CASTINGS)
    chosen = choose(x, implementation)
    if chosen == "eager":
        return rms_norm_reference(x, weight, eps, offset=offset, casting=casting)
    if chosen == "vendor":
        return rms_norm_vendor(x, weight, eps, offset=offset, casting=casting)
    return rms_norm_differentiable(x, weight, eps, offset, casting)


def _differentiable(x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float, casting: str) -> torch.Tensor:
    if tracked(x, weight):
        return _RMSNorm.apply(x, weight, eps, offset, casting)
    return rms_norm_forward(x, weight, eps, offset, casting, False)[0]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps, offset, casting):
        y, rstd = rms_norm_forward(x, weight, eps, offset, casting, True)
        ctx.save_for_backward(x, weight, rstd)
        ctx.options = eps, offset, casting
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        need_dx, need_dweight = ctx.needs_input_grad[:2]
        dx, dweight = rms_norm_backward(dy, x, weight, rstd, *ctx.options, need_dx, need_dweight)
        return dx if need_dx else None, dweight if need_dweight else None, None, None, None


# The buffers are those of kernel.py. Work tiles share memory with dead buffers; the compile gate proves the sums.
@functools.cache
def _forward_plan(target: Target, n_cols: int, itemsize: int, weight_itemsize: int, casting: str) -> RowPlan:
    stream = Buffer(itemsize, streamed=True)
    # The reduction folds halves of the squares into a scratch of half a tile. The cast before the weight frees the place for it.
    scratch = (Buffer(2),) if casting == "gemma" or not weight_itemsize else ()
    vectors = (*_weight_buffers(weight_itemsize), Buffer(4, "columns"), Buffer(4, "rows", streamed=True))
    # With room, y is staged in fp32 and the squares and their scratch have places of their own.
    roomy = (stream, Buffer(4, streamed=True), Buffer(4), Buffer(2), *vectors)
    resident = (stream, stream, Buffer(4), *scratch, *vectors)
    return plan_rows(target, n_cols, resident, _column_tile_buffers(2, itemsize), roomy=roomy)


@functools.cache
def _backward_plan(target: Target, n_cols: int, itemsize: int, weight_itemsize: int) -> RowPlan:
    stream = Buffer(itemsize, streamed=True)
    resident = (stream,) * 3 + (Buffer(4), Buffer(4), *_weight_buffers(weight_itemsize), Buffer(4, "columns"), Buffer(4, "columns"))
    plan = plan_rows(target, n_cols, resident, _column_tile_buffers(3, itemsize))
    # The columns' share: weight and partial sum come and go as streams, and are computed with.
    wide = (*(stream,) * 3, *(Buffer(4),) * 3, *(Buffer(4, "columns"),) * 6, Buffer(UB_BLOCK_BYTES, "rows", streamed=True))
    return plan if plan.resident else plan_tall(target, n_cols, wide)


def _weight_buffers(weight_itemsize: int) -> tuple[Buffer, ...]:
    return (Buffer(weight_itemsize, "columns"), Buffer(4, "columns")) if weight_itemsize else ()


def _column_tile_buffers(streams: int, itemsize: int) -> tuple[Buffer, ...]:
    # The accumulating tile and the weight's column tile (double-buffered) come on top of the streams.
    return (Buffer(itemsize, streamed=True),) * streams + (Buffer(4), Buffer(4), Buffer(4, "columns", streamed=True))


def _forward_kernel(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float, casting: str, save_rstd: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y, rstd = _forward_fake(x, weight, eps, offset, casting, save_rstd)
    if x.numel() == 0:
        return y, rstd
    target = target_of(x)
    weight = None if weight is None else weight.contiguous()  # a row of a matrix, say: the kernel walks it with stride 1
    rows = rows_of((x,), (y, rstd) if save_rstd else (y,))
    x_in, y_out, rstd_out = (*rows.tensors, rstd)[:3]
    run = _forward_launch(target, x.shape[-1], dtypes_of(x, weight), rows.numbers, rows.dense, eps, offset, casting, save_rstd)
    run(x_in, weight, y_out, rstd_out)
    rows.write_back()
    return y, rstd


# Kept, because working it out takes longer than the rest of a launch; every number of rows has one of its own.
@functools.lru_cache(maxsize=4096)
def _forward_launch(
    target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...], dense: bool, eps: float, offset: float,
    casting: str, save: bool,
) -> Launch:  # fmt: skip
    """For x and weight of these dtypes."""
    plan = _forward_plan(target, n_cols, *map(itemsize_of, dtypes), casting)
    outer, middle, inner = numbers[:3]
    numbers = (*numbers, 0, 0, 0)[:12]
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "ONE_BLOCK": outer * middle == 1, "CASTING": casting}
    constants |= {"HAS_WEIGHT": dtypes[1] is not None, "SAVE_RSTD": save}
    if plan.resident:
        constants |= {"FOLD": plan.fold, "DENSE": dense, "ONE_TILE": target.backend == "cuda"}
    name = "rms_norm_forward_kernel" if plan.resident else "rms_norm_forward_wide_kernel"
    grid = programs(target, plan.row_tiles(outer * middle, inner), persistent=False)
    return Launch(_KERNELS, name, grid, target, (*numbers, eps, offset), num_warps=plan.num_warps, **constants)


def _forward_reference(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float, casting: str, save_rstd: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y, rstd = _forward_fake(x, weight, eps, offset, casting, save_rstd)
    y.copy_(rms_norm_reference(x, weight, eps, offset=offset, casting=casting))
    return y, rstd.fill_(0)


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float, casting: str, save_rstd: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.empty_like(x)
    if not save_rstd:
        return y, x.new_empty(0, dtype=torch.float32)
    if x.is_contiguous():
        return y, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    # In the order of x: a kernel walks both with the same strides, whatever the layout of x.
    return y, torch.empty_like(x[..., :1], dtype=torch.float32)


def _backward_kernel(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, rstd: torch.Tensor,
    eps: float, offset: float, casting: str, need_dx: bool, need_dweight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dx, dweight = _backward_fake(dy, x, weight, rstd, eps, offset, casting, need_dx, need_dweight)
    if x.numel() == 0:
        return dx, dweight.zero_()
    target = target_of(x)
    weight = None if weight is None else weight.contiguous()
    rows = rows_of((x, dy, rstd), (dx,) if need_dx else ())
    run, grid = _backward_launch(target, x.shape[-1], dtypes_of(x, weight, dy), rows.numbers, rows.dense, offset, need_dx, need_dweight)
    partials = x.new_empty((grid if need_dweight else 0, x.shape[-1]), dtype=torch.float32)
    x_in, dy_in, rstd_in = rows.tensors[:3]
    run(x_in, weight, dy_in, rstd_in, rows.tensors[-1] if need_dx else None, partials)
    rows.write_back()
    if need_dweight:
        dweight = sum_partials(partials, dweight.dtype, target)
    return dx, dweight


@functools.lru_cache(maxsize=4096)
def _backward_launch(
    target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...], dense: bool, offset: float,
    need_dx: bool, need_dweight: bool,
) -> tuple[Launch, int]:  # fmt: skip
    """The launch for x, weight and dy of these dtypes, and how many programs it has: rows of partial sums."""
    plan = _backward_plan(target, n_cols, *map(itemsize_of, dtypes[:2]))
    (outer, middle, inner), strides = numbers[:3], (*numbers[3:], 0, 0, 0)
    # rstd's come behind dx's.
    strides = (*strides[:6], *strides[9:12], *strides[6:9])
    grid = programs(target, plan.row_tiles(outer * middle, inner), persistent=True)
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "ONE_BLOCK": outer * middle == 1}
    constants |= {"HAS_WEIGHT": dtypes[1] is not None, "NEED_DX": need_dx, "NEED_DWEIGHT": need_dweight}
    constants |= {"FOLD": plan.fold, "DENSE": dense} if plan.resident else {"BARRIER": target.backend == "cuda"}
    name = "rms_norm_backward_kernel" if plan.resident else "rms_norm_backward_wide_kernel"
    return Launch(_KERNELS, name, grid, target, (outer, middle, inner, *strides, offset), num_warps=plan.num_warps, **constants), grid


def _backward_reference(dy, x, weight, rstd, eps, offset, casting, need_dx, need_dweight):
    dx, dweight = _backward_fake(dy, x, weight, rstd, eps, offset, casting, need_dx, need_dweight)

    def formula(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return rms_norm_reference(x, weight, eps, offset=offset, casting=casting)

    gradients = reference_gradients(formula, (x, weight), dy, (need_dx, need_dweight))
    for out, gradient in zip((dx, dweight), gradients):
        if gradient is not None:
            out.copy_(gradient)
    return dx, dweight


def _backward_fake(dy, x, weight, rstd, eps, offset, casting, need_dx, need_dweight):
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    dweight = torch.empty_like(weight) if need_dweight else x.new_empty(0)
    return dx, dweight


rms_norm_forward = register_op(
    "npu_op_rmsnorm",
    "forward(Tensor x, Tensor? weight, float eps, float offset, str casting, bool save_rstd) -> (Tensor y, Tensor rstd)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
rms_norm_backward = register_op(
    "npu_op_rmsnorm",
    "backward(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, float eps, float offset, str casting, bool need_dx, bool need_dweight)"
    " -> (Tensor dx, Tensor dweight)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
rms_norm_differentiable = register_composite(
    "npu_op_rmsnorm",
    "rms_norm(Tensor x, Tensor? weight, Scalar eps, Scalar offset, str casting) -> Tensor",
    _differentiable,
)
