"""Triton kernels that do what the published measurements did."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def add(X, Y, Z, n, BLOCK: tl.constexpr):
    """z = x + y, a contiguous range per core."""
    each = tl.cdiv(tl.cdiv(n, BLOCK), tl.num_programs(0)) * BLOCK
    first = tl.program_id(0) * each
    for start in range(first, min(first + each, n), BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(Z + at, tl.load(X + at) + tl.load(Y + at))


@triton.jit(do_not_specialize=["n"])
def copy(X, Y, n, BLOCK: tl.constexpr):
    """y = x, a contiguous range per core."""
    each = tl.cdiv(tl.cdiv(n, BLOCK), tl.num_programs(0)) * BLOCK
    first = tl.program_id(0) * each
    for start in range(first, min(first + each, n), BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(Y + at, tl.load(X + at))


@triton.jit(do_not_specialize=["n_rows"])
def rope(X, COS, SIN, Y, n_rows, HALF: tl.constexpr, ROWS: tl.constexpr):
    """Rotates the halves of each row by its own angles."""
    half = tl.arange(0, HALF)
    for start in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = rows[:, None] < n_rows
        at, angle = rows[:, None] * 2 * HALF + half[None, :], rows[:, None] * HALF + half[None, :]
        low = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(X + at + HALF, mask=inside, other=0.0).to(tl.float32)
        cos = tl.load(COS + angle, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(SIN + angle, mask=inside, other=0.0).to(tl.float32)
        tl.store(Y + at, (low * cos - high * sin).to(Y.dtype.element_ty), mask=inside)
        tl.store(Y + at + HALF, (high * cos + low * sin).to(Y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n"])
def below(X, Y, n, limit, BLOCK: tl.constexpr):
    """y = x < limit, as 0 and 1."""
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(Y + at, tl.where(tl.load(X + at) < limit, 1.0, 0.0))


@triton.jit(do_not_specialize=["n_rows"])
def rms_whole_rows(X, Y, n_rows, n_cols: tl.constexpr, ROWS: tl.constexpr):
    """RMSNorm, whole rows in UB, several a tile."""
    cols = tl.arange(0, n_cols)
    for start in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = rows[:, None] < n_rows
        x = tl.load(X + rows[:, None] * n_cols + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, axis=1) * (1.0 / n_cols) + 1e-6)[:, None]
        tl.store(Y + rows[:, None] * n_cols + cols[None, :], y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def rms_two_passes(X, Y, n_cols: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """RMSNorm, a few rows a program, the row read twice in column blocks."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        x = tl.load(X + rows[:, None] * n_cols + (start + tl.arange(0, BLOCK))[None, :]).to(tl.float32)
        total += tl.sum(x * x, axis=1)
    scale = tl.rsqrt(total * (1.0 / n_cols) + 1e-6)
    for start in range(0, n_cols, BLOCK):
        at = rows[:, None] * n_cols + (start + tl.arange(0, BLOCK))[None, :]
        x = tl.load(X + at).to(tl.float32)
        tl.store(Y + at, (x * scale[:, None]).to(Y.dtype.element_ty))
