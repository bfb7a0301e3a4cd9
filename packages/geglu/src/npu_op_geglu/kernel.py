"""Kernels of GEGLU: gelu(gate) * up, flat over contiguous memory or over strided rows.

tanh GELU needs no tanh: 0.5 * (1 + tanh(u)) = sigmoid(2u), so one exp and one division replace about eight vector operations.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import my_chunk

# 2u = x * (LINEAR + CUBIC * x^2) with u = sqrt(2/pi) * (x + 0.044715 x^3), torch.nn.functional.gelu(approximate="tanh").
LINEAR = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.07135481627260025)
# Constants carry their sign: `-a - b * x` compiles to one more vector operation than `b' * x + a'`.
MINUS_LINEAR = tl.constexpr(-1.5957691216057308)
MINUS_CUBIC = tl.constexpr(-0.07135481627260025)
THREE_CUBIC = tl.constexpr(0.21406444881780074)
SQRT_HALF = tl.constexpr(0.7071067811865476)
# 1 / sqrt(2 pi), the normal density at 0.
DENSITY = tl.constexpr(0.3989422804014327)


@triton.jit
def _gelu(x, TANH: tl.constexpr):
    if TANH:
        return x / (1.0 + tl.exp(x * (x * x * MINUS_CUBIC + MINUS_LINEAR)))
    else:
        return x * (0.5 * tl.math.erf(x * SQRT_HALF) + 0.5)


@triton.jit
def _gradients(dy, gate, up, TANH: tl.constexpr):
    """dgate = dy * up * gelu'(gate) and dup = dy * gelu(gate), with gelu(x) = x * cdf(x)."""
    square = gate * gate
    if TANH:
        # 0.5 / (0.5 + 0.5 e) and not 1 / (1 + e): the compiler turns products with a reciprocal into further divisions.
        cdf = 0.5 / (0.5 * tl.exp(gate * (square * MINUS_CUBIC + MINUS_LINEAR)) + 0.5)
        dy_cdf = dy * cdf
        dup = dy_cdf * gate
        return dy_cdf * up * ((gate - gate * cdf) * (square * THREE_CUBIC + LINEAR) + 1.0), dup
    else:
        cdf = 0.5 * tl.math.erf(gate * SQRT_HALF) + 0.5
        slope = gate * (DENSITY * tl.exp(square * -0.5))
        return dy * up * (cdf + slope), dy * (gate * cdf)


@triton.jit
def geglu_forward_kernel(GATE, UP, OUT, elements, BLOCK: tl.constexpr, TANH: tl.constexpr):
    """Contiguous. Moves: read gate and up, write out."""
    lane = tl.arange(0, BLOCK)
    first, last = my_chunk(tl.cdiv(elements, BLOCK))
    for tile in range(first, last):
        base = tl.cast(tile, tl.int64) * BLOCK
        mask = lane < tl.minimum(elements - base, BLOCK).to(tl.int32)
        gate = tl.load(GATE + base + lane, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(UP + base + lane, mask=mask, other=0.0).to(tl.float32)
        out = _gelu(gate, TANH) * up
        tl.store(OUT + base + lane, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit
def geglu_backward_kernel(DY, GATE, UP, DGATE, DUP, elements, BLOCK: tl.constexpr, TANH: tl.constexpr):
    """Contiguous. Moves: read dy, gate and up, write dgate and dup (which may be gate and up themselves)."""
    lane = tl.arange(0, BLOCK)
    first, last = my_chunk(tl.cdiv(elements, BLOCK))
    for tile in range(first, last):
        base = tl.cast(tile, tl.int64) * BLOCK
        mask = lane < tl.minimum(elements - base, BLOCK).to(tl.int32)
        gate = tl.load(GATE + base + lane, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(UP + base + lane, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(DY + base + lane, mask=mask, other=0.0).to(tl.float32)
        dgate, dup = _gradients(dy, gate, up, TANH)
        tl.store(DGATE + base + lane, dgate.to(DGATE.dtype.element_ty), mask=mask)
        tl.store(DUP + base + lane, dup.to(DUP.dtype.element_ty), mask=mask)


@triton.jit
def _tile_of(tile, inner, n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Outer block, first row and first column of a tile; row tiles are the fastest, then columns, then blocks."""
    row_tiles = tl.cdiv(inner, ROWS)
    strip = tile // row_tiles
    block = strip // ((n_cols + COLS - 1) // COLS)
    row = (tile - strip * row_tiles) * ROWS
    column = (strip - block * ((n_cols + COLS - 1) // COLS)) * COLS
    return tl.cast(block, tl.int64), row, column


@triton.jit(do_not_specialize=["outer", "inner", "gate_outer", "up_outer", "out_outer"])
def geglu_forward_rows_kernel(
    GATE, UP, OUT, outer, inner, gate_outer, gate_row, up_outer, up_row, out_outer, out_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """Strided rows (packed gate|up, slices). Moves: read gate and up, write out."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    first, last = my_chunk(outer * tl.cdiv(inner, ROWS) * ((n_cols + COLS - 1) // COLS))
    for tile in range(first, last):
        block, row, column = _tile_of(tile, inner, n_cols, ROWS, COLS)
        row64 = tl.cast(row, tl.int64)
        mask = (lane < inner - row)[:, None] & (cols < n_cols - column)[None, :]
        gate_at = GATE + block * gate_outer + row64 * gate_row + column + (lane[:, None] * gate_row + cols[None, :])
        up_at = UP + block * up_outer + row64 * up_row + column + (lane[:, None] * up_row + cols[None, :])
        out_at = OUT + block * out_outer + row64 * out_row + column + (lane[:, None] * out_row + cols[None, :])
        gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(up_at, mask=mask, other=0.0).to(tl.float32)
        out = _gelu(gate, TANH) * up
        tl.store(out_at, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["outer", "inner", "dy_outer", "gate_outer", "up_outer", "dgate_outer", "dup_outer"])
def geglu_backward_rows_kernel(
    DY, GATE, UP, DGATE, DUP, outer, inner, dy_outer, dy_row, gate_outer, gate_row, up_outer, up_row,
    dgate_outer, dgate_row, dup_outer, dup_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """Strided rows. Moves: read dy, gate and up, write dgate and dup (which may be gate and up themselves)."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    first, last = my_chunk(outer * tl.cdiv(inner, ROWS) * ((n_cols + COLS - 1) // COLS))
    for tile in range(first, last):
        block, row, column = _tile_of(tile, inner, n_cols, ROWS, COLS)
        row64 = tl.cast(row, tl.int64)
        mask = (lane < inner - row)[:, None] & (cols < n_cols - column)[None, :]
        dy_at = DY + block * dy_outer + row64 * dy_row + column + (lane[:, None] * dy_row + cols[None, :])
        gate_at = GATE + block * gate_outer + row64 * gate_row + column + (lane[:, None] * gate_row + cols[None, :])
        up_at = UP + block * up_outer + row64 * up_row + column + (lane[:, None] * up_row + cols[None, :])
        dgate_at = DGATE + block * dgate_outer + row64 * dgate_row + column + (lane[:, None] * dgate_row + cols[None, :])
        dup_at = DUP + block * dup_outer + row64 * dup_row + column + (lane[:, None] * dup_row + cols[None, :])
        gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(up_at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_at, mask=mask, other=0.0).to(tl.float32)
        dgate, dup = _gradients(dy, gate, up, TANH)
        tl.store(dgate_at, dgate.to(DGATE.dtype.element_ty), mask=mask)
        tl.store(dup_at, dup.to(DUP.dtype.element_ty), mask=mask)
