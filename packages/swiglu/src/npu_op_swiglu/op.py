"""The registered ops of SwiGLU, their autograd Functions and the public functions."""

from __future__ import annotations

import functools

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_same_device, require_separate, require_shape, require_tensor
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.elementwise import halves, launch_elementwise
from npu_op_runtime.registration import reference_gradients, register_composite, register_op
from npu_op_runtime.tiling import Buffer

from .reference import swiglu_packed_reference, swiglu_reference
from .vendor import swiglu_packed_vendor, swiglu_vendor

_KERNELS = "npu_op_swiglu.kernel"


def swiglu(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
    inplace_backward: bool = False,
    implementation: str | None = None,
) -> torch.Tensor:
    """silu(gate_multiplier * gate) * up * down_multiplier, computed in fp32 and rounded once.

    Args:
        gate, up: same shape, dtype (fp16, bf16 or fp32) and device; any layout whose last dimension is contiguous.
        gate_multiplier, down_multiplier: 1.0 in Llama, other values in Falcon-H1.
        inplace_backward: backward writes the gradients over gate and up, which must not be used afterwards; saves two
            tensors of their size. Backward can then run once only.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton", "vendor" or "eager".

    Returns:
        Shape, dtype and device of gate. Differentiable in gate and up.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    require_tensor("gate", gate)
    require_tensor("up", up)
    require_dtype("gate", gate)
    require_dtype("up", up, (gate.dtype,))
    require_shape("up", up, gate.shape)
    require_same_device(gate=gate, up=up)
    chosen = choose(gate, implementation)
    if chosen == "eager":
        return swiglu_reference(gate, up, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    if chosen == "vendor":
        return swiglu_vendor()
    return swiglu_differentiable(gate, up, gate_multiplier, down_multiplier, inplace_backward)


def swiglu_packed(
    x: torch.Tensor, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0, implementation: str | None = None
) -> torch.Tensor:
    """silu(gate_multiplier * gate) * up * down_multiplier for x = gate | up in the last dimension, without splitting it.

    Args:
        x: (..., 2 * intermediate_size), fp16, bf16 or fp32, last dimension contiguous.
        gate_multiplier, down_multiplier, implementation: as in `swiglu`; "vendor" is torch_npu.npu_swiglu.

    Returns:
        (..., intermediate_size), dtype and device of x.

    Raises:
        As `swiglu`; ValueError also for an odd last dimension.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"x must have an even last dimension, gate | up (got shape {tuple(x.shape)})")
    chosen = choose(x, implementation)
    if chosen == "eager":
        return swiglu_packed_reference(x, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    if chosen == "vendor":
        return swiglu_packed_vendor(x, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    return swiglu_packed_differentiable(x, gate_multiplier, down_multiplier)


def _differentiable(
    gate: torch.Tensor, up: torch.Tensor, gate_multiplier: float, down_multiplier: float, inplace_backward: bool
) -> torch.Tensor:
    if tracked(gate, up):
        return _SwiGLU.apply(gate, up, gate_multiplier, down_multiplier, inplace_backward)
    return swiglu_forward(gate, up, gate_multiplier, down_multiplier)


def _packed_differentiable(x: torch.Tensor, gate_multiplier: float, down_multiplier: float) -> torch.Tensor:
    if tracked(x):
        return _PackedSwiGLU.apply(x, gate_multiplier, down_multiplier)
    return swiglu_packed_forward(x, gate_multiplier, down_multiplier)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, gate_multiplier, down_multiplier, inplace_backward):
        ctx.save_for_backward(gate, up)
        ctx.multipliers = gate_multiplier, down_multiplier
        ctx.inplace = inplace_backward
        return swiglu_forward(gate, up, gate_multiplier, down_multiplier)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        if ctx.inplace and all(ctx.needs_input_grad[:2]):  # a tensor without a gradient is not for overwriting
            swiglu_backward_inplace(dy, gate, up, *ctx.multipliers)
            dgate, dup = gate, up
        else:
            dgate, dup = swiglu_backward(dy, gate, up, *ctx.multipliers, *ctx.needs_input_grad[:2])
        return dgate if ctx.needs_input_grad[0] else None, dup if ctx.needs_input_grad[1] else None, None, None, None


class _PackedSwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate_multiplier, down_multiplier):
        ctx.save_for_backward(x)
        ctx.multipliers = gate_multiplier, down_multiplier
        return swiglu_packed_forward(x, gate_multiplier, down_multiplier)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return swiglu_packed_backward(dy, x, *ctx.multipliers), None, None


# fp32 tiles that the compiler keeps apart if it has room, by number of streams: in half precision, in fp32, where the streams are
# work tiles themselves. It fits larger tiles by letting work and streams share memory, and then the pipes wait for each other.
_WORK_TILES = {3: (3, 0), 5: (6, 2)}


@functools.cache
def _buffers(itemsize: int, streams: int) -> tuple[Buffer, ...]:
    half, single = _WORK_TILES[streams]
    return (Buffer(itemsize, streamed=True),) * streams + (Buffer(4),) * (half if itemsize == 2 else single)


def _scales(gate_multiplier: float, down_multiplier: float) -> dict[str, float | bool]:
    return {
        "gate_multiplier": gate_multiplier,
        "down_multiplier": down_multiplier,
        "SCALE_GATE": gate_multiplier != 1.0,
        "SCALE_DOWN": down_multiplier != 1.0,
    }


def _run_forward(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, gate_multiplier: float, down_multiplier: float) -> None:
    buffers = _buffers(gate.element_size(), 3)
    launch_elementwise(_KERNELS, "swiglu_forward", (gate, up), (out,), buffers, **_scales(gate_multiplier, down_multiplier))


def _run_backward(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, dgate: torch.Tensor | None, dup: torch.Tensor | None,
    gate_multiplier: float, down_multiplier: float,
) -> None:  # fmt: skip
    buffers = _buffers(gate.element_size(), 5)
    constants = {"NEED_DGATE": dgate is not None, "NEED_DUP": dup is not None, **_scales(gate_multiplier, down_multiplier)}
    launch_elementwise(_KERNELS, "swiglu_backward", (dy, gate, up), (dgate, dup), buffers, **constants)


def _forward_kernel(gate, up, gate_multiplier, down_multiplier):
    out = _forward_fake(gate, up, gate_multiplier, down_multiplier)
    _run_forward(gate, up, out, gate_multiplier, down_multiplier)
    return out


def _forward_reference(gate, up, gate_multiplier, down_multiplier):
    out = _forward_fake(gate, up, gate_multiplier, down_multiplier)
    return out.copy_(swiglu_reference(gate, up, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier))


def _forward_fake(gate, up, gate_multiplier, down_multiplier):
    return torch.empty_like(gate)


def _backward_kernel(dy, gate, up, gate_multiplier, down_multiplier, need_dgate, need_dup):
    dgate, dup = _backward_fake(dy, gate, up, gate_multiplier, down_multiplier, need_dgate, need_dup)
    _run_backward(dy, gate, up, dgate if need_dgate else None, dup if need_dup else None, gate_multiplier, down_multiplier)
    return dgate, dup


def _backward_reference(dy, gate, up, gate_multiplier, down_multiplier, need_dgate, need_dup):
    outputs = _backward_fake(dy, gate, up, gate_multiplier, down_multiplier, need_dgate, need_dup)

    def formula(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return swiglu_reference(gate, up, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)

    for out, gradient in zip(outputs, reference_gradients(formula, (gate, up), dy, (need_dgate, need_dup))):
        if gradient is not None:
            out.copy_(gradient)
    return outputs


def _backward_fake(dy, gate, up, gate_multiplier, down_multiplier, need_dgate, need_dup):
    return torch.empty_like(gate) if need_dgate else gate.new_empty(0), torch.empty_like(up) if need_dup else up.new_empty(0)


def _backward_inplace_kernel(dy, gate, up, gate_multiplier, down_multiplier):
    require_separate(gate=gate, up=up)
    _run_backward(dy, gate, up, gate, up, gate_multiplier, down_multiplier)


def _backward_inplace_reference(dy, gate, up, gate_multiplier, down_multiplier):
    require_separate(gate=gate, up=up)
    for out, gradient in zip((gate, up), _backward_reference(dy, gate, up, gate_multiplier, down_multiplier, True, True)):
        out.copy_(gradient)


def _backward_inplace_fake(dy, gate, up, gate_multiplier, down_multiplier):
    return None


def _packed_forward_kernel(x, gate_multiplier, down_multiplier):
    out = _packed_forward_fake(x, gate_multiplier, down_multiplier)
    _run_forward(*halves(x), out, gate_multiplier, down_multiplier)
    return out


def _packed_forward_reference(x, gate_multiplier, down_multiplier):
    y = swiglu_packed_reference(x, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    return _packed_forward_fake(x, gate_multiplier, down_multiplier).copy_(y)


def _packed_forward_fake(x, gate_multiplier, down_multiplier):
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _packed_backward_kernel(dy, x, gate_multiplier, down_multiplier):
    dx = torch.empty_like(x)
    _run_backward(dy, *halves(x), *halves(dx), gate_multiplier, down_multiplier)
    return dx


def _packed_backward_reference(dy, x, gate_multiplier, down_multiplier):
    def formula(x: torch.Tensor) -> torch.Tensor:
        return swiglu_packed_reference(x, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)

    (gradient,) = reference_gradients(formula, (x,), dy, (True,))
    return torch.empty_like(x).copy_(gradient)


def _packed_backward_fake(dy, x, gate_multiplier, down_multiplier):
    return torch.empty_like(x)


swiglu_forward = register_op(
    "npu_op_swiglu",
    "forward(Tensor gate, Tensor up, float gate_multiplier, float down_multiplier) -> Tensor",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
swiglu_backward = register_op(
    "npu_op_swiglu",
    "backward(Tensor dy, Tensor gate, Tensor up, float gate_multiplier, float down_multiplier, bool need_dgate, bool need_dup)"
    " -> (Tensor dgate, Tensor dup)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
swiglu_backward_inplace = register_op(
    "npu_op_swiglu",
    "backward_(Tensor dy, Tensor(a!) gate, Tensor(b!) up, float gate_multiplier, float down_multiplier) -> ()",
    kernel=_backward_inplace_kernel,
    reference=_backward_inplace_reference,
    fake=_backward_inplace_fake,
)
swiglu_packed_forward = register_op(
    "npu_op_swiglu",
    "packed_forward(Tensor x, float gate_multiplier, float down_multiplier) -> Tensor",
    kernel=_packed_forward_kernel,
    reference=_packed_forward_reference,
    fake=_packed_forward_fake,
)
swiglu_packed_backward = register_op(
    "npu_op_swiglu",
    "packed_backward(Tensor dy, Tensor x, float gate_multiplier, float down_multiplier) -> Tensor",
    kernel=_packed_backward_kernel,
    reference=_packed_backward_reference,
    fake=_packed_backward_fake,
)
swiglu_differentiable = register_composite(
    "npu_op_swiglu",
    "swiglu(Tensor gate, Tensor up, Scalar gate_multiplier, Scalar down_multiplier, bool inplace_backward) -> Tensor",
    _differentiable,
)
swiglu_packed_differentiable = register_composite(
    "npu_op_swiglu",
    "swiglu_packed(Tensor x, Scalar gate_multiplier, Scalar down_multiplier) -> Tensor",
    _packed_differentiable,
)
