"""A small RMSNorm whose "kernels" are plain PyTorch, and its broken variants, one for each thing that the battery must catch."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from npu_op_lab.execution import Mode
from npu_op_lab.inputs import sliced
from npu_op_lab.mutants import last_program_wins, low_precision_sum
from npu_op_runtime.autograd import refuse_gradients
from npu_op_runtime.registration import register_op
from npu_op_runtime.spec import Case, InputFactory, OperatorSpec, Traffic

# The battery's checks of kernels, on the toy: its ops compute with PyTorch what a kernel would.
KERNELS = Mode("interpreter", "cpu", kernels=True)


def reference(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return y if weight is None else y * weight


def make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    rows, width, dtype = case.dims["T"], case.dims["H"], case.torch_dtype
    x = factory.randn(rows, width, dtype=dtype)
    weight = factory.randn(width, dtype=dtype, scale=0.2, offset=1.0) if case.dims["weight"] else None
    return {"x": sliced(x) if case.layout == "sliced" else x, "weight": weight}


def case(name: str, rows: int, width: int, dtype: str = "float32", weight: int = 1, **fields: Any) -> Case:
    return Case(name, {"T": rows, "H": width, "weight": weight}, dtype, **fields)


CASES = (
    case("float32", 24, 64),
    case("float16", 24, 64, "float16"),
    case("bfloat16", 24, 64, "bfloat16"),
    case("no-weight", 24, 64, weight=0),
    case("eps", 24, 64, options={"eps": 0.5}),
    case("sliced", 24, 64, layout="sliced"),
)


# Variants without a backward: a right one and its fault.
INFERENCE = ("inference", "drops a gradient")


@functools.cache
def toy(fault: str) -> OperatorSpec:
    """The operator with one fault, "none", or without a backward ("inference")."""
    return OperatorSpec(
        name="toy",
        cases=CASES[:1] if fault == "one dtype" else CASES,
        make_inputs=_vacuous_inputs if fault == "vacuous case" else make_inputs,
        function=_function(fault),
        reference=reference,
        differentiable=() if fault in INFERENCE else ("x", "weight"),
        traffic=lambda case: Traffic(0, 0),
        bench_case=lambda model, tokens: CASES[0],
        free_dims={"H": range(1, 130)},
    )


def _vacuous_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    """Rows in which one element dwarfs the others: nothing of the others shows."""
    inputs = make_inputs(case, factory)
    inputs["x"][:, :1] = 1e6
    return inputs


def _function(fault: str) -> Any:
    namespace = f"npu_op_toy_{fault.replace(' ', '_').replace('-', '_')}"
    kernels = _Kernels(fault)

    def fake_forward(x: torch.Tensor, weight: torch.Tensor | None, eps: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x, dtype=torch.float64 if fault == "fake of another dtype" else None)

    forward = register_op(
        namespace, "forward(Tensor x, Tensor? weight, Tensor eps) -> Tensor", kernel=print, reference=kernels.forward, fake=fake_forward
    )
    backward = register_op(
        namespace,
        "backward(Tensor dy, Tensor x, Tensor? weight, Tensor eps, bool need_dx, bool need_dweight) -> (Tensor, Tensor)",
        kernel=print,
        reference=kernels.backward,
        fake=_gradients_like,
    )
    forward_float = register_op(
        namespace,
        "forward_float(Tensor x, Tensor? weight, float eps) -> Tensor",
        kernel=print,
        reference=lambda x, weight, eps: kernels.forward(x, weight, torch.tensor(eps)),
        fake=fake_forward,
    )

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, eps: Any) -> torch.Tensor:
            if fault == "float in the schema":
                ctx.save_for_backward(x, weight, torch.full((), eps))
                return forward_float(x, weight, eps)
            ctx.save_for_backward(x, weight, eps)
            return forward(x, weight, eps)

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            x, weight, eps = ctx.saved_tensors
            need_dx, need_dweight = ctx.needs_input_grad[:2]
            if fault == "computes frozen gradients":
                dx, dweight = backward(dy, x, weight, eps, True, weight is not None)
            else:
                dx, dweight = backward(dy, x, weight, eps, need_dx, need_dweight)
            return dx if need_dx else None, dweight if need_dweight else None, None

    latched: dict[str, torch.Tensor] = {}

    def function(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
        if fault == "inference":
            refuse_gradients("toy", x=x, weight=weight)
        if fault in INFERENCE:
            return forward(x, weight, torch.zeros((), dtype=torch.float64) + eps)
        if fault == "latches its first result":
            return latched.setdefault("y", forward(x, weight, torch.tensor(eps)))
        if fault == "bypasses its ops":
            return reference(x, weight, eps)
        if fault == "graph break":
            torch._dynamo.graph_break()
        if fault == "loops over rows":
            for _ in range(x.shape[0]):
                pass
        if fault == "float in the schema":
            return Function.apply(x, weight, eps)
        # A Python float that varies stays symbolic in a compiled graph only in arithmetic with a tensor.
        return Function.apply(x, weight, torch.zeros((), dtype=torch.float64) + eps)

    return function


def _gradients_like(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: torch.Tensor, need_dx: bool, need_dweight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    dweight = torch.empty_like(weight) if need_dweight and weight is not None else x.new_empty(0)
    return dx, dweight


class _Kernels:
    def __init__(self, fault: str) -> None:
        self._fault = fault

    def forward(self, x: torch.Tensor, weight: torch.Tensor | None, eps: torch.Tensor) -> torch.Tensor:
        fault = self._fault
        y = torch.empty_like(x)
        if x.numel() == 0:
            if fault == "refuses no rows":
                raise RuntimeError("grid must not be empty")
            return y
        if fault == "ignores strides":
            x = x.as_strided(x.shape, (x.shape[-1], 1))
        if fault == "ignores the stride of a vector" and weight is not None:
            weight = weight.as_strided(weight.shape, (1,))
        if fault == "reads on the host":
            assert x.abs().max().tolist() < 1e30
        if fault == "depends on values":
            assert x.abs().max() < 1e30
        exact = self._normalise(x, eps.item())
        if fault == "sums in fp16":
            mean = low_precision_sum(x.float().square().T, torch.float16).float() / x.shape[-1]
            exact = x.float() * torch.rsqrt(mean + eps.item())[:, None]
        result = exact.to(x.dtype) if weight is None else exact.to(x.dtype) * weight
        if fault == "off by a row":
            result = result.roll(1, 0)
        if fault == "random order":
            result = result + torch.rand(()) * 1e-6
        if fault == "width above 64 lost":
            result[:, 64:] = 0
        written = y[:-1] if fault == "tail not written" else y
        written.copy_(result[: len(written)])
        if fault == "writes outside":
            ctypes.memset(y.data_ptr() + y.numel() * y.element_size(), 0, 8)
        if fault == "reads outside":
            y += 0 * ctypes.c_float.from_address(x.data_ptr() + x.numel() * x.element_size()).value
        if fault == "overwrites an input":
            x[0] += 1
        return y

    def backward(
        self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: torch.Tensor, need_dx: bool, need_dweight: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fault = self._fault
        dx, dweight = _gradients_like(dy, x, weight, eps, need_dx, need_dweight)
        if x.numel() == 0:
            return dx, dweight if fault == "gradient of no rows not zeroed" else dweight.zero_()
        if fault == "needs every gradient" and weight is not None and not (need_dx and need_dweight):
            raise RuntimeError("dweight is None")
        if fault == "reads the incoming gradient once":
            dy = torch.zeros_like(x).index_copy_(0, torch.tensor([0]), dy[:1]) if dy.stride() == (0, 0) else dy
        xhat = self._normalise(x, eps.item())
        if need_dx:
            rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps.item())
            g = dy.float() if weight is None else dy.float() * weight.float()
            mean = (g * xhat).mean(-1, keepdim=True)
            dx.copy_((g - xhat * mean) * rstd)
        if need_dweight:
            terms = dy.float() * xhat
            dweight.copy_(last_program_wins(terms, 4) if fault == "last program wins" else terms.sum(0))
        if fault == "overwrites the incoming gradient":
            dy.zero_()
        return dx, dweight

    @staticmethod
    def _normalise(x: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
