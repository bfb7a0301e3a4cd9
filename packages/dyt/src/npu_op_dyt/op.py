"""The registered ops of Dynamic Tanh, their autograd Function and the public function."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_same_device, require_shape, require_tensor
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import itemsize_of, require_dtype
from npu_op_runtime.launch import Launch, dtypes_of
from npu_op_runtime.partials import sum_partials, sums_dtype
from npu_op_runtime.registration import reference_gradients, register_op
from npu_op_runtime.rows import rows_of
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer, off_bank_period, plan_blocks, plan_rows

from .reference import dyt_reference

_KERNELS = "npu_op_dyt.kernel"

# Columns of a strip: wide enough for long transfers, narrow enough for several rows in a tile; whole 512-byte lines of bf16.
_MAX_STRIP = 2048
_STRIP_STEP = 256

# Elements of a tile of forward: more would wait a little less, but leave more of the last tile empty at 1024 rows.
_FORWARD_TILE = 8192


def dyt(
    x: torch.Tensor,
    alpha: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """tanh(alpha * x) * gamma + beta over the last dimension, computed in fp32 and rounded once.

    Args:
        x: (..., hidden_size), fp16, bf16 or fp32, any layout whose last dimension is contiguous.
        alpha: one element, shape (1,) or (), fp16, bf16 or fp32 (may differ from x). Read on the device, never by the host.
        gamma, beta: (hidden_size,), fp16, bf16 or fp32 (may differ from x); beta may be None.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        Shape, dtype and device of x. Differentiable in x, alpha, gamma and beta.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension (got a scalar)")
    require_tensor("alpha", alpha)
    require_dtype("alpha", alpha)
    if alpha.numel() != 1 or alpha.dim() > 1:
        raise ValueError(f"alpha must have shape (1,) or () (got {tuple(alpha.shape)})")
    require_tensor("gamma", gamma)
    for argument, parameter in (("gamma", gamma), ("beta", beta)):
        if parameter is not None:
            require_tensor(argument, parameter)
            require_dtype(argument, parameter)
            require_shape(argument, parameter, x.shape[-1:])
    require_same_device(x=x, alpha=alpha, gamma=gamma, beta=beta)
    chosen = choose(x, implementation)
    if chosen == "eager":
        return dyt_reference(x, alpha, gamma, beta)
    if chosen == "vendor":
        raise NotImplementedError("implementation='vendor' cannot run: torch_npu has no Dynamic Tanh; use 'eager'")
    if tracked(x, alpha, gamma, beta):
        return _DyT.apply(x, alpha, gamma, beta)
    return dyt_forward(x, alpha, gamma, beta)


class _DyT(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha, gamma, beta):
        ctx.save_for_backward(x, alpha, gamma, beta)
        return dyt_forward(x, alpha, gamma, beta)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        need_dx, need_dalpha, *need_columns = ctx.needs_input_grad
        x, alpha, gamma, beta = ctx.saved_tensors
        dx, dalpha, dcolumns = dyt_backward(dy, x, alpha, gamma, beta, *ctx.needs_input_grad)
        sums = iter(dcolumns)
        columns = [next(sums).to(parameter.dtype) if need else None for parameter, need in zip((gamma, beta), need_columns)]
        return dx if need_dx else None, dalpha if need_dalpha else None, *columns


class StripPlan(NamedTuple):
    """Tiles of `rows` x `cols` in `strips` strips of columns, which `overlap` where they read `cols` columns and own fewer."""

    rows: int
    cols: int
    strips: int
    overlap: bool
    num_warps: int


# The buffers are those of kernel.py; the compile gate proves the sums.
@functools.cache
def _plan(target: Target, n_cols: int, itemsize: int, backward: bool) -> StripPlan:
    if target.backend == "cuda":
        tile = plan_blocks(target, n_cols, (Buffer(itemsize),))
        return StripPlan(tile.rows, tile.cols, -(-n_cols // tile.cols), False, tile.num_warps)
    granule = UB_BLOCK_BYTES // itemsize
    options = []
    for programs in range(1, target.cores + 1):
        step = _STRIP_STEP if programs > 1 else granule
        cols = -(-n_cols // (programs * step)) * step
        if target.cores % programs == 0 and (cols <= _MAX_STRIP or programs == target.cores):
            # Columns that two strips read, then the fewest strips.
            options.append((cols * programs - n_cols, programs, min(cols, _MAX_STRIP)))
    cols = min(options)[2]
    strips = -(-n_cols // cols)
    # A strip that ends beyond the row would be filled with zeros before each load, and the load would wait for that.
    overlap = strips > 1 and strips * cols > n_cols
    if not backward:
        held = (Buffer(itemsize, streamed=True), Buffer(4, streamed=True), *(Buffer(4, "columns"),) * 5)
        rows = min(plan_rows(target, cols, held, held).rows, max(1, _FORWARD_TILE // cols))
        return StripPlan(rows, cols, strips, overlap, 4)
    buffers = (*(Buffer(itemsize, streamed=True),) * 2, Buffer(4, streamed=True), *(Buffer(4),) * 6, *(Buffer(4, "columns"),) * 3)
    rows = plan_rows(target, cols, buffers, buffers).rows
    if itemsize < 4:  # in fp32 HBM is the bound, and columns read twice would cost
        # Strips a little wider than needed keep neighbouring tiles off the bank period, if that many columns exist and fit.
        for wider in range(cols, min(cols + _STRIP_STEP, n_cols) + 1, granule):
            fits = (strips - 1) * wider < n_cols and plan_rows(target, wider, buffers, buffers).rows >= rows
            if fits and off_bank_period(rows * wider):
                return StripPlan(rows, wider, strips, strips * wider > n_cols, 4)
    return StripPlan(rows, cols, strips, overlap, 4)


def _shares(target: Target, plan: StripPlan, blocks: int, inner: int, *, persistent: bool) -> int:
    """Into how many shares the rows go: one per core and strip; on CUDA one per tile, or a few per multiprocessor."""
    tiles = blocks * -(-inner // plan.rows)
    if target.backend == "cuda":
        return min(tiles, max(1, 2 * target.cores // plan.strips)) if persistent else tiles
    return min(tiles, max(1, target.cores // plan.strips))


def _forward_kernel(x: torch.Tensor, alpha: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None) -> torch.Tensor:
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    target = target_of(x)
    # The kernel walks parameters with stride 1; a row of a matrix, say, has another.
    gamma, beta = gamma.contiguous(), None if beta is None else beta.contiguous()
    rows = rows_of((x,), (y,))
    x_in, y_out = rows.tensors
    run = _forward_launch(target, x.shape[-1], dtypes_of(x, alpha, gamma, beta), rows.numbers)
    run(x_in, alpha, gamma, beta, y_out)
    rows.write_back()
    return y


# Kept, because working it out takes longer than the rest of a launch; every number of rows has one of its own.
@functools.lru_cache(maxsize=4096)
def _forward_launch(target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...]) -> Launch:
    """For x, alpha, gamma and beta of these dtypes."""
    plan = _plan(target, n_cols, itemsize_of(dtypes[0]), backward=False)
    outer, middle, inner = numbers[:3]
    shares = _shares(target, plan, outer * middle, inner, persistent=False)
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "STRIPS": plan.strips, "OVERLAP": plan.overlap}
    constants |= {"ONE_BLOCK": outer * middle == 1, "HAS_BETA": dtypes[3] is not None}
    grid = shares * plan.strips
    return Launch(_KERNELS, "dyt_forward_kernel", grid, target, (shares, *numbers), num_warps=plan.num_warps, **constants)


def _forward_reference(x, alpha, gamma, beta):
    return torch.empty_like(x).copy_(dyt_reference(x, alpha, gamma, beta))


def _forward_fake(x, alpha, gamma, beta):
    return torch.empty_like(x)


def _backward_kernel(
    dy: torch.Tensor, x: torch.Tensor, alpha: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None,
    need_dx: bool, need_dalpha: bool, need_dgamma: bool, need_dbeta: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    dx, dalpha, dcolumns = _backward_fake(dy, x, alpha, gamma, beta, need_dx, need_dalpha, need_dgamma, need_dbeta)
    if x.numel() == 0:
        return dx, dalpha.zero_(), dcolumns.zero_()
    target = target_of(x)
    gamma = gamma.contiguous()
    rows = rows_of((x, dy), (dx,) if need_dx else ())
    needs = need_dx, need_dalpha, need_dgamma, need_dbeta
    run, shares, strips = _backward_launch(target, x.shape[-1], dtypes_of(x, alpha, gamma, dy), rows.numbers, needs)
    scalar_columns = strips if need_dalpha else 0
    partials = x.new_empty((shares, dcolumns.numel() + scalar_columns), dtype=torch.float32)
    x_in, dy_in, dx_out = (*rows.tensors, None)[:3]
    run(x_in, alpha, gamma, dy_in, dx_out, partials)
    rows.write_back()
    if partials.shape[1] == 0:
        return dx, dalpha, dcolumns
    sums = sum_partials(partials, dcolumns.dtype, target, scalar=dalpha if need_dalpha else None, scalar_columns=scalar_columns)
    return dx, dalpha, sums.view_as(dcolumns)


@functools.lru_cache(maxsize=4096)
def _backward_launch(
    target: Target, n_cols: int, dtypes: tuple[torch.dtype | None, ...], numbers: tuple[int, ...], needs: tuple[bool, bool, bool, bool]
) -> tuple[Launch, int, int]:
    """The launch for x, alpha, gamma and dy of these dtypes, its shares of the rows (rows of partial sums) and its strips."""
    plan = _plan(target, n_cols, itemsize_of(dtypes[0]), backward=True)
    outer, middle, inner = numbers[:3]
    shares = _shares(target, plan, outer * middle, inner, persistent=True)
    constants = {"n_cols": n_cols, "ROWS": plan.rows, "COLS": plan.cols, "STRIPS": plan.strips, "OVERLAP": plan.overlap}
    constants |= {"ONE_BLOCK": outer * middle == 1}
    constants |= dict(zip(("NEED_DX", "NEED_DALPHA", "NEED_DGAMMA", "NEED_DBETA"), needs))
    numbers = (shares, *numbers, 0, 0, 0)[:13]
    run = Launch(_KERNELS, "dyt_backward_kernel", shares * plan.strips, target, numbers, num_warps=plan.num_warps, **constants)
    return run, shares, plan.strips


def _backward_reference(dy, x, alpha, gamma, beta, need_dx, need_dalpha, need_dgamma, need_dbeta):
    dx, dalpha, dcolumns = _backward_fake(dy, x, alpha, gamma, beta, need_dx, need_dalpha, need_dgamma, need_dbeta)
    needed = need_dx, need_dalpha, need_dgamma, need_dbeta
    gradients = reference_gradients(dyt_reference, (x, alpha, gamma, beta), dy, needed)
    outputs = (*([dx] if need_dx else []), *([dalpha] if need_dalpha else []), *dcolumns)
    for out, gradient in zip(outputs, (g for g in gradients if g is not None)):
        out.copy_(gradient)
    return dx, dalpha, dcolumns


def _backward_fake(dy, x, alpha, gamma, beta, need_dx, need_dalpha, need_dgamma, need_dbeta):
    dcolumns = x.new_empty((need_dgamma + need_dbeta, x.shape[-1]), dtype=sums_dtype((gamma, need_dgamma), (beta, need_dbeta)))
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    return dx, torch.empty_like(alpha) if need_dalpha else x.new_empty(0), dcolumns


dyt_forward = register_op(
    "npu_op_dyt",
    "forward(Tensor x, Tensor alpha, Tensor gamma, Tensor? beta) -> Tensor",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
dyt_backward = register_op(
    "npu_op_dyt",
    "backward(Tensor dy, Tensor x, Tensor alpha, Tensor gamma, Tensor? beta, bool need_dx, bool need_dalpha, bool need_dgamma,"
    " bool need_dbeta) -> (Tensor dx, Tensor dalpha, Tensor dcolumns)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
