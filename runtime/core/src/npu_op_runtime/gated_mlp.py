"""The whole gated MLP, down_proj(act(gate_proj(x), up_proj(x))), as a benchmark of the activation: what specs of gated units share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn.functional import linear

from .spec import Case, InputFactory, Traffic

LAYOUT = "mlp"
WEIGHTS = ("gate_weight", "up_weight", "down_weight")

Activation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def whole_mlp(case: Case, module: Callable[..., torch.nn.Module]) -> Case:
    """The MLP `module` around a case of the activation; its dims are T tokens, H hidden and I intermediate columns."""
    # Made here, so that what its initialisation does is in nobody's time.
    _without_memory(module, case.dims["H"], case.dims["I"], case.torch_dtype)
    return replace(case, name=f"{case.name}-{LAYOUT}", layout=LAYOUT)


def judged_mlp(case: Case) -> Case:
    """The stand-in of a benchmark case whose values are judged: the hidden size of an MLP is its products' alone."""
    return replace(case, dims={**case.dims, "H": 64}) if case.layout == LAYOUT else case


def mlp_inputs(case: Case, factory: InputFactory) -> dict[str, torch.Tensor]:
    """x (T, H) and the weights as torch.nn.Linear keeps them, scaled so that every product has about the size of x."""
    tokens, hidden, width = (case.dims[dim] for dim in ("T", "H", "I"))
    shapes = {"gate_weight": (width, hidden), "up_weight": (width, hidden), "down_weight": (hidden, width)}
    weights = {name: factory.randn(*shape, dtype=case.torch_dtype, scale=shape[1] ** -0.5) for name, shape in shapes.items()}
    return {"x": factory.randn(tokens, hidden, dtype=case.torch_dtype), **weights}


def mlp_formula(
    activation: Activation, x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, down_weight: torch.Tensor
) -> torch.Tensor:
    """The MLP in plain PyTorch, as transformers computes it."""
    return linear(activation(linear(x, gate_weight), linear(x, up_weight)), down_weight)


def call_mlp(
    module: Callable[..., torch.nn.Module], x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, down_weight: torch.Tensor
) -> torch.Tensor:
    """The forward of `module(hidden_size, intermediate_size)` with these weights."""
    weights = {"gate_proj.weight": gate_weight, "up_proj.weight": up_weight, "down_proj.weight": down_weight}
    mlp = _without_memory(module, down_weight.shape[0], down_weight.shape[1], x.dtype)
    result: torch.Tensor = torch.func.functional_call(mlp, weights, (x,))
    return result


def mlp_traffic(case: Case) -> Traffic:
    """x, the weights, gate and up (kept), the output; backward dy, x, the weights, gate and up, gradients of x and of the weights."""
    tokens, hidden, width = (case.dims[dim] for dim in ("T", "H", "I"))
    itemsize = case.torch_dtype.itemsize
    rows, weights, kept = tokens * hidden * itemsize, 3 * hidden * width * itemsize, 2 * tokens * width * itemsize
    return Traffic(forward=2 * rows + weights + kept, backward=3 * rows + 2 * weights + kept)


@functools.cache
def _without_memory(module: Callable[..., torch.nn.Module], hidden: int, width: int, dtype: torch.dtype) -> torch.nn.Module:
    return module(hidden, width, device="meta", dtype=dtype)
