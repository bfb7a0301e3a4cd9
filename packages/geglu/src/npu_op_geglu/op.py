"""The registered ops of GEGLU, their autograd Functions and the public functions."""

from __future__ import annotations

import functools

import torch

from npu_op_runtime.autograd import once_differentiable, tracked
from npu_op_runtime.checks import require_choice, require_same_device, require_separate, require_shape, require_tensor
from npu_op_runtime.dispatch import choose
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.elementwise import halves, launch_elementwise
from npu_op_runtime.registration import reference_gradients, register_op
from npu_op_runtime.tiling import Buffer

from .reference import geglu_packed_reference, geglu_reference
from .vendor import geglu_packed_vendor, geglu_vendor

APPROXIMATIONS = ("tanh", "none")
_KERNELS = "npu_op_geglu.kernel"


def geglu(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    approximate: str = "tanh",
    inplace_backward: bool = False,
    implementation: str | None = None,
) -> torch.Tensor:
    """gelu(gate) * up, computed in fp32 and rounded once.

    Args:
        gate, up: same shape, dtype (fp16, bf16 or fp32) and device; any layout whose last dimension is contiguous.
        approximate: "tanh" or "none" (erf), as in torch.nn.functional.gelu.
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
    require_choice("approximate", approximate, APPROXIMATIONS)
    chosen = choose(gate, implementation)
    if chosen == "eager":
        return geglu_reference(gate, up, approximate=approximate)
    if chosen == "vendor":
        return geglu_vendor(gate, up, approximate=approximate)
    if tracked(gate, up):
        return _GEGLU.apply(gate, up, approximate, inplace_backward)
    return geglu_forward(gate, up, approximate)


def geglu_packed(x: torch.Tensor, *, approximate: str = "tanh", implementation: str | None = None) -> torch.Tensor:
    """gelu(gate) * up for x = gate | up in the last dimension, without splitting it.

    Args:
        x: (..., 2 * intermediate_size), fp16, bf16 or fp32, last dimension contiguous.
        approximate, implementation: as in `geglu`; "vendor" is torch_npu.npu_geglu.

    Returns:
        (..., intermediate_size), dtype and device of x.

    Raises:
        As `geglu`; ValueError also for an odd last dimension.
    """
    require_tensor("x", x)
    require_dtype("x", x)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"x must have an even last dimension, gate | up (got shape {tuple(x.shape)})")
    require_choice("approximate", approximate, APPROXIMATIONS)
    chosen = choose(x, implementation)
    if chosen == "eager":
        return geglu_packed_reference(x, approximate=approximate)
    if chosen == "vendor":
        return geglu_packed_vendor(x, approximate=approximate)
    if tracked(x):
        return _PackedGEGLU.apply(x, approximate)
    return geglu_packed_forward(x, approximate)


class _GEGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, approximate, inplace_backward):
        ctx.save_for_backward(gate, up)
        ctx.approximate = approximate
        ctx.inplace = inplace_backward
        return geglu_forward(gate, up, approximate)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        if ctx.inplace and all(ctx.needs_input_grad[:2]):  # a tensor without a gradient is not for overwriting
            geglu_backward_inplace(dy, gate, up, ctx.approximate)
            dgate, dup = gate, up
        else:
            dgate, dup = geglu_backward(dy, gate, up, ctx.approximate, *ctx.needs_input_grad[:2])
        return dgate if ctx.needs_input_grad[0] else None, dup if ctx.needs_input_grad[1] else None, None, None


class _PackedGEGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, approximate):
        ctx.save_for_backward(x)
        ctx.approximate = approximate
        return geglu_packed_forward(x, approximate)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return geglu_packed_backward(dy, x, ctx.approximate), None


# Buffers of the kernels: streams, and the fp32 tiles that the compiler keeps apart if it has room. It fits larger tiles by
# letting work and streams share memory, and then pipes wait for each other (modelled: docs/operators/geglu.md).
_WORK_TILES = {
    # (streams, approximate): in half precision, in fp32, where the streams themselves are work tiles
    (3, "tanh"): (3, 0),
    (3, "none"): (6, 2),
    (5, "tanh"): (6, 2),
    (5, "none"): (7, 4),
}


@functools.cache
def _buffers(itemsize: int, streams: int, approximate: str) -> tuple[Buffer, ...]:
    half, single = _WORK_TILES[streams, approximate]
    return (Buffer(itemsize, streamed=True),) * streams + (Buffer(4),) * (half if itemsize == 2 else single)


def _run_forward(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, approximate: str) -> None:
    buffers = _buffers(gate.element_size(), 3, approximate)
    launch_elementwise(_KERNELS, "geglu_forward", (gate, up), (out,), buffers, TANH=approximate == "tanh")


def _run_backward(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, dgate: torch.Tensor | None, dup: torch.Tensor | None, approximate: str
) -> None:
    buffers = _buffers(gate.element_size(), 5, approximate)
    constants = {"TANH": approximate == "tanh", "NEED_DGATE": dgate is not None, "NEED_DUP": dup is not None}
    launch_elementwise(_KERNELS, "geglu_backward", (dy, gate, up), (dgate, dup), buffers, **constants)


def _forward_kernel(gate, up, approximate):
    out = _forward_fake(gate, up, approximate)
    _run_forward(gate, up, out, approximate)
    return out


def _forward_reference(gate, up, approximate):
    return _forward_fake(gate, up, approximate).copy_(geglu_reference(gate, up, approximate=approximate))


def _forward_fake(gate, up, approximate):
    return torch.empty_like(gate)


def _backward_kernel(dy, gate, up, approximate, need_dgate, need_dup):
    dgate, dup = _backward_fake(dy, gate, up, approximate, need_dgate, need_dup)
    _run_backward(dy, gate, up, dgate if need_dgate else None, dup if need_dup else None, approximate)
    return dgate, dup


def _backward_reference(dy, gate, up, approximate, need_dgate, need_dup):
    outputs = _backward_fake(dy, gate, up, approximate, need_dgate, need_dup)
    gradients = reference_gradients(lambda g, u: geglu_reference(g, u, approximate=approximate), (gate, up), dy, (need_dgate, need_dup))
    for out, gradient in zip(outputs, gradients):
        if gradient is not None:
            out.copy_(gradient)
    return outputs


def _backward_fake(dy, gate, up, approximate, need_dgate, need_dup):
    return torch.empty_like(gate) if need_dgate else gate.new_empty(0), torch.empty_like(up) if need_dup else up.new_empty(0)


def _backward_inplace_kernel(dy, gate, up, approximate):
    require_separate(gate=gate, up=up)
    _run_backward(dy, gate, up, gate, up, approximate)


def _backward_inplace_reference(dy, gate, up, approximate):
    require_separate(gate=gate, up=up)
    for out, gradient in zip((gate, up), _backward_reference(dy, gate, up, approximate, True, True)):
        out.copy_(gradient)


def _backward_inplace_fake(dy, gate, up, approximate):
    return None


def _packed_forward_kernel(x, approximate):
    out = _packed_forward_fake(x, approximate)
    _run_forward(*halves(x), out, approximate)
    return out


def _packed_forward_reference(x, approximate):
    return _packed_forward_fake(x, approximate).copy_(geglu_packed_reference(x, approximate=approximate))


def _packed_forward_fake(x, approximate):
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _packed_backward_kernel(dy, x, approximate):
    dx = torch.empty_like(x)
    _run_backward(dy, *halves(x), *halves(dx), approximate)
    return dx


def _packed_backward_reference(dy, x, approximate):
    (gradient,) = reference_gradients(lambda x: geglu_packed_reference(x, approximate=approximate), (x,), dy, (True,))
    return torch.empty_like(x).copy_(gradient)


def _packed_backward_fake(dy, x, approximate):
    return torch.empty_like(x)


geglu_forward = register_op(
    "npu_op_geglu",
    "forward(Tensor gate, Tensor up, str approximate) -> Tensor",
    kernel=_forward_kernel,
    reference=_forward_reference,
    fake=_forward_fake,
)
geglu_backward = register_op(
    "npu_op_geglu",
    "backward(Tensor dy, Tensor gate, Tensor up, str approximate, bool need_dgate, bool need_dup) -> (Tensor dgate, Tensor dup)",
    kernel=_backward_kernel,
    reference=_backward_reference,
    fake=_backward_fake,
)
geglu_backward_inplace = register_op(
    "npu_op_geglu",
    "backward_(Tensor dy, Tensor(a!) gate, Tensor(b!) up, str approximate) -> ()",
    kernel=_backward_inplace_kernel,
    reference=_backward_inplace_reference,
    fake=_backward_inplace_fake,
)
geglu_packed_forward = register_op(
    "npu_op_geglu",
    "packed_forward(Tensor x, str approximate) -> Tensor",
    kernel=_packed_forward_kernel,
    reference=_packed_forward_reference,
    fake=_packed_forward_fake,
)
geglu_packed_backward = register_op(
    "npu_op_geglu",
    "packed_backward(Tensor dy, Tensor x, str approximate) -> Tensor",
    kernel=_packed_backward_kernel,
    reference=_packed_backward_reference,
    fake=_packed_backward_fake,
)
