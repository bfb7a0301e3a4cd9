"""The registered ops of GroupNorm, their autograd Function and the public function."""

from __future__ import annotations

import functools
import math
import warnings
from typing import NamedTuple

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_number, require_same_device, require_shape, require_tensor, require_width
from npu_op_runtime.device import Target, target_of
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.launch import Launch, dtypes_of
from npu_op_runtime.partials import sum_partials, sums_dtype
from npu_op_runtime.registration import reference_gradients, register_composite, register_op
from npu_op_runtime.tiling import programs

from .plan import GroupPlan, plan_groups
from .reference import group_norm_reference

_KERNELS = "npu_op_groupnorm.kernel"

# Parts per core that the narrow kernels cut the samples of all groups into: enough for even shares, few enough for short sums.
_PARTS_PER_CORE = 4


def group_norm(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over each group of C / num_groups channels, computed in fp32, rounded once.

    The variance is that of the centred group, so a mean far above the deviations costs no digits.

    Args:
        x: (N, C, *), fp16, bf16 or fp32. Samples and channels may be strided; one whose trailing dimensions are not contiguous as one
            (channels_last, a crop) is copied, with a warning, for a group is not contiguous there.
        num_groups: divides C.
        weight, bias: (C,), fp16, bf16 or fp32 (may differ from x), or None.
        eps: added to the variance.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        Shape, dtype and device of x, contiguous from the kernel. Differentiable in x, weight and bias; arithmetic is fp32 whatever
        autocast says.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() < 2:
        raise ValueError(f"x must have shape (N, C, *) (got {tuple(x.shape)})")
    require_width("num_groups", num_groups)
    if x.shape[1] % num_groups:
        raise ValueError(f"num_groups must divide the {x.shape[1]} channels of x (got {num_groups})")
    for argument, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            require_tensor(argument, parameter)
            require_dtype(argument, parameter)
            require_shape(argument, parameter, x.shape[1:2])
    require_number("eps", eps)
    require_same_device(x=x, weight=weight, bias=bias)
    chosen = choose(x, implementation)
    if chosen == "eager":
        return group_norm_reference(x, num_groups, weight, bias, eps)
    if chosen == "vendor":
        raise NotImplementedError(
            "implementation='vendor' cannot run: torch_npu has no GroupNorm besides torch.nn.functional.group_norm; use 'eager'"
        )
    return group_norm_differentiable(x, num_groups, weight, bias, eps)


def _differentiable(x: torch.Tensor, num_groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    if tracked(x, weight, bias):
        return _GroupNorm.apply(x, num_groups, weight, bias, eps)
    return group_norm_forward(x, num_groups, weight, bias, eps, False)[0]


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, num_groups, weight, bias, eps):
        y, mean, rstd = group_norm_forward(x, num_groups, weight, bias, eps, True)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.num_groups, ctx.eps = num_groups, eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        need_dx, _, *needed, _ = ctx.needs_input_grad
        x, weight, bias, mean, rstd = ctx.saved_tensors
        dx, dparameters = group_norm_backward(dy, x, ctx.num_groups, weight, bias, mean, rstd, ctx.eps, need_dx, *needed)
        sums = iter(dparameters)
        gradients = [next(sums).to(parameter.dtype) if need else None for parameter, need in zip((weight, bias), needed)]
        return dx if need_dx else None, None, *gradients, None


def _channel_rows(x: torch.Tensor) -> torch.Tensor:
    """(N, C, elements per channel) with contiguous channels, a view where x's layout allows it."""
    rows = x if x.dim() == 3 else x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    spatial = rows.shape[2]
    return rows if rows.stride(2 if spatial > 1 else 1) == 1 else rows.contiguous()


class _Layout(NamedTuple):
    """What the kernels are told of tensors of `_channel_rows`: their shape, and (sample, channel) strides of each."""

    samples: int
    channels: int
    spatial: int
    strides: tuple[tuple[int, int], ...]

    @property
    def dense(self) -> bool:
        return all(channel == self.spatial for _, channel in self.strides)


def _layout(*rows: torch.Tensor) -> _Layout:
    samples, channels, spatial = rows[0].shape
    return _Layout(samples, channels, spatial, tuple([(tensor.stride(0), tensor.stride(1)) for tensor in rows]))


def _plan(target: Target, num_groups: int, layout: _Layout, itemsize: int, streams: int, parameter_rows: int) -> GroupPlan:
    width = layout.channels // num_groups
    return plan_groups(target, num_groups, width, layout.spatial, itemsize, streams, parameter_rows, dense=layout.dense)


def _tile(plan: GroupPlan, num_groups: int, layout: _Layout) -> dict[str, int | bool]:
    """Constants of the kernel that `plan` is for."""
    _, channels, spatial, _ = layout
    if plan.layout == "narrow":
        return {"groups": num_groups, "width": channels // num_groups * spatial, "ROWS": plan.rows, "COLS": plan.cols}
    tile = {"channels": channels, "spatial": spatial, "D": channels // num_groups, "FOLD": plan.fold, "COLS": plan.cols}
    return tile | {"GROUPS": plan.groups, "SLOTS": plan.slots, "DENSE": layout.dense}


def _tiles(plan: GroupPlan, num_groups: int) -> int:
    """Tiles, or groups that are walked by themselves, of a sample."""
    return -(-num_groups // (plan.groups // plan.fold))


def _parts(target: Target, plan: GroupPlan, num_groups: int, samples: int, *, persistent: bool) -> int:
    tiles = -(-samples // plan.rows)
    if target.backend == "cuda" and not persistent:
        return tiles
    return min(tiles, -(-_PARTS_PER_CORE * target.cores // num_groups))


def _per_element(parameter: torch.Tensor | None, spatial: int) -> torch.Tensor | None:
    return parameter if parameter is None or spatial == 1 else parameter.repeat_interleave(spatial)


def _forward_kernel(
    x: torch.Tensor, num_groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, save: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, mean, rstd = _forward_fake(x, num_groups, weight, bias, eps, save)
    if x.numel() == 0:
        return y, mean, rstd
    target = target_of(x)
    # The kernel walks parameters with stride 1; a row of a matrix, say, has another.
    weight = None if weight is None else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    rows = _channel_rows(x)
    if rows.data_ptr() != x.data_ptr():
        warnings.warn(f"copying x of shape {tuple(x.shape)} and strides {x.stride()}: its groups are not contiguous", stacklevel=2)
    run, narrow = _forward_launch(target, num_groups, _layout(rows), dtypes_of(x, weight, bias), eps, save)
    if narrow:
        weight, bias = _per_element(weight, rows.shape[2]), _per_element(bias, rows.shape[2])
    run(rows, weight, bias, y, mean, rstd)
    return y, mean, rstd


# Kept, because working it out takes longer than the rest of a launch; every number of samples has one of its own.
@functools.lru_cache(maxsize=4096)
def _forward_launch(
    target: Target, num_groups: int, layout: _Layout, dtypes: tuple[torch.dtype | None, ...], eps: float, save: bool
) -> tuple[Launch, bool]:
    """The launch for x, weight and bias of these dtypes, and whether it takes a weight and a bias for each element."""
    assert dtypes[0] is not None
    plan = _plan(target, num_groups, layout, dtypes[0].itemsize, 2, 2)
    constants = _tile(plan, num_groups, layout) | {"HAS_WEIGHT": dtypes[1] is not None, "HAS_BIAS": dtypes[2] is not None, "SAVE": save}
    ((sample, channel),) = layout.strides
    narrow = plan.layout == "narrow"
    numbers: tuple[float, ...]
    if narrow:
        parts = _parts(target, plan, num_groups, layout.samples, persistent=False)
        grid, numbers = num_groups * parts, (layout.samples, sample, eps, parts)
    else:
        grid, numbers = layout.samples * _tiles(plan, num_groups), (layout.samples, sample, channel, eps)
    grid = programs(target, grid, persistent=False)
    return Launch(_KERNELS, _FORWARD[plan.layout], grid, target, numbers, num_warps=plan.num_warps, **constants), narrow


def _forward_reference(x, num_groups, weight, bias, eps, save):
    y, mean, rstd = _forward_fake(x, num_groups, weight, bias, eps, save)
    y.copy_(group_norm_reference(x, num_groups, weight, bias, eps))
    return y, mean.fill_(0), rstd.fill_(0)


def _forward_fake(x, num_groups, weight, bias, eps, save):
    mean, rstd = (x.new_empty((x.shape[0], num_groups) if save else 0, dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), mean, rstd


def _backward_kernel(
    dy: torch.Tensor, x: torch.Tensor, num_groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor,
    rstd: torch.Tensor, eps: float, need_dx: bool, need_dweight: bool, need_dbias: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    if x.numel() == 0:
        dx, dparameters = _backward_fake(dy, x, num_groups, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias)
        return dx, dparameters.zero_()
    dx = x.new_empty(x.shape if need_dx else 0)
    target = target_of(x)
    weight = None if weight is None else weight.contiguous()
    rows = _channel_rows(x), _channel_rows(dy)
    needs = need_dx, need_dweight, need_dbias
    run, narrow, parts = _backward_launch(target, num_groups, _layout(*rows), dtypes_of(x, weight, dy), needs)
    _, channels, spatial = rows[0].shape
    columns = channels * spatial if narrow else channels
    if narrow:
        weight = _per_element(weight, spatial)
    sums = need_dweight + need_dbias
    partials = x.new_empty((parts, sums * columns), dtype=torch.float32)
    run(rows[0], weight, rows[1], mean, rstd, dx if need_dx else None, partials)
    dtype = sums_dtype((weight, need_dweight), (bias, need_dbias))
    if not sums:
        return dx, x.new_empty((0, channels), dtype=dtype)
    if narrow and spatial > 1:
        return dx, sum_partials(partials, torch.float32, target).view(sums, channels, spatial).sum(2).to(dtype)
    return dx, sum_partials(partials, dtype, target).view(sums, channels)


@functools.lru_cache(maxsize=4096)
def _backward_launch(
    target: Target, num_groups: int, layout: _Layout, dtypes: tuple[torch.dtype | None, ...], needs: tuple[bool, bool, bool]
) -> tuple[Launch, bool, int]:
    """The launch for x, weight and dy of these dtypes, whether it takes a weight for each element, and rows of its partial sums."""
    assert dtypes[0] is not None
    plan = _plan(target, num_groups, layout, dtypes[0].itemsize, 3, 3)
    constants = _tile(plan, num_groups, layout) | {"HAS_WEIGHT": dtypes[1] is not None}
    constants |= dict(zip(("NEED_DX", "NEED_DWEIGHT", "NEED_DBIAS"), needs))
    narrow = plan.layout == "narrow"
    if narrow:
        parts = _parts(target, plan, num_groups, layout.samples, persistent=True)
        grid = programs(target, num_groups * parts, persistent=True)
        numbers = (layout.samples, *[sample for sample, _ in layout.strides], parts)
    else:
        parts = layout.samples
        grid = programs(target, parts * _tiles(plan, num_groups), persistent=False)
        numbers = (layout.samples, *[stride for strides in layout.strides for stride in strides])
    return Launch(_KERNELS, _BACKWARD[plan.layout], grid, target, numbers, num_warps=plan.num_warps, **constants), narrow, parts


def _backward_reference(dy, x, num_groups, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias):
    dx, dparameters = _backward_fake(dy, x, num_groups, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias)

    def formula(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        return group_norm_reference(x, num_groups, weight, bias, eps)

    gradients = reference_gradients(formula, (x, weight, bias), dy, (need_dx, need_dweight, need_dbias))
    for out, gradient in zip((*([dx] if need_dx else []), *dparameters), (g for g in gradients if g is not None)):
        out.copy_(gradient)
    return dx, dparameters


def _backward_fake(dy, x, num_groups, weight, bias, mean, rstd, eps, need_dx, need_dweight, need_dbias):
    dx = x.new_empty(x.shape) if need_dx else x.new_empty(0)
    return dx, x.new_empty((need_dweight + need_dbias, x.shape[1]), dtype=sums_dtype((weight, need_dweight), (bias, need_dbias)))


_FORWARD = {
    "resident": "group_norm_forward_kernel",
    "wide": "group_norm_forward_wide_kernel",
    "narrow": "group_norm_forward_narrow_kernel",
}
_BACKWARD = {
    "resident": "group_norm_backward_kernel",
    "wide": "group_norm_backward_wide_kernel",
    "narrow": "group_norm_backward_narrow_kernel",
}

group_norm_forward = register_op(
    "npu_op_groupnorm",
    "forward(Tensor x, int num_groups, Tensor? weight, Tensor? bias, float eps, bool save) -> (Tensor y, Tensor mean, Tensor rstd)",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
group_norm_backward = register_op(
    "npu_op_groupnorm",
    "backward(Tensor dy, Tensor x, int num_groups, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd, float eps, bool need_dx,"
    " bool need_dweight, bool need_dbias) -> (Tensor dx, Tensor dparameters)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
group_norm_differentiable = register_composite(
    "npu_op_groupnorm",
    "group_norm(Tensor x, int num_groups, Tensor? weight, Tensor? bias, Scalar eps) -> Tensor",
    _differentiable,
)
