"""A small operator with a real Triton kernel, y = scale * x over rows, and its broken variants: for the checks of launches."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from npu_op_runtime.device import target_of
from npu_op_runtime.registration import register_op
from npu_op_runtime.spec import Case, InputFactory, OperatorSpec, Traffic


@triton.jit(do_not_specialize=["n_rows"])
def scale_rows_kernel(X, Y, scale, n_rows, x_row, n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STRAY: tl.constexpr):
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    for first in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        rows = first + lane
        mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
        x = tl.load(X + rows[:, None] * x_row + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        y = (x * scale).to(Y.dtype.element_ty)
        if STRAY:
            tl.store(Y + rows[:, None] * n_cols + cols[None, :], y)
        else:
            tl.store(Y + rows[:, None] * n_cols + cols[None, :], y, mask=mask)


@triton.jit
def rows_constexpr_kernel(X, Y, scale, x_row, n_rows: tl.constexpr, n_cols: tl.constexpr, COLS: tl.constexpr):
    cols = tl.arange(0, COLS)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(X + row * x_row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        tl.store(Y + row * n_cols + cols, (x * scale).to(Y.dtype.element_ty), mask=cols < n_cols)


@triton.jit
def scale_constexpr_kernel(X, Y, n_rows, x_row, scale: tl.constexpr, n_cols: tl.constexpr, COLS: tl.constexpr):
    cols = tl.arange(0, COLS)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(X + row * x_row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        tl.store(Y + row * n_cols + cols, (x * scale).to(Y.dtype.element_ty), mask=cols < n_cols)


def make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    return {"x": factory.randn(case.dims["T"], case.dims["H"], dtype=case.torch_dtype)}


def reference(x: torch.Tensor, scale: float = 1.5) -> torch.Tensor:
    return x * scale


@functools.cache
def toy_kernel(fault: str) -> OperatorSpec:
    """The operator with one fault, or "none"; forward only."""
    rows_per_tile = 4096 if fault == "tile beyond the UB" else 8

    def launch(x: torch.Tensor, scale: float) -> torch.Tensor:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        n_rows, n_cols = x.shape
        cols = triton.next_power_of_2(n_cols)
        programs = n_rows if fault == "a program per row" else min(target_of(x).cores, -(-n_rows // rows_per_tile))
        if n_rows == 0 and fault != "launches no rows":
            return y
        if fault == "copies":
            x = x.contiguous()
        if fault == "syncs":
            assert not x.isnan().any()
        if fault == "rows in the kernel":
            rows_constexpr_kernel[(programs,)](x, y, scale, x.stride(0), n_rows, n_cols, cols)
        elif fault == "float in the kernel":
            scale_constexpr_kernel[(programs,)](x, y, n_rows, x.stride(0), scale, n_cols, cols)
        else:
            stray = fault == "writes outside"
            scale_rows_kernel[(max(1, programs),)](x, y, scale, n_rows, x.stride(0), n_cols, rows_per_tile, cols, stray)
        return y

    op = register_op(
        f"npu_op_toy_kernel_{fault.replace(' ', '_')}",
        "scale(Tensor x, float scale) -> Tensor",
        kernel=launch,
        reference=reference,
        fake=lambda x, scale: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    )

    def function(x: torch.Tensor, scale: float = 1.5) -> torch.Tensor:
        return op(x, scale)

    return OperatorSpec(
        name="toy_kernel",
        cases=(Case("rows", {"T": 50, "H": 100}, "float32", tags=frozenset({"values", "gradient-free"})),),
        make_inputs=make_inputs,
        function=function,
        reference=reference,
        differentiable=("x",),
        traffic=lambda case: Traffic(0, 0),
        bench_case=lambda model, tokens: Case("bench", {"T": tokens, "H": 64}),
    )
