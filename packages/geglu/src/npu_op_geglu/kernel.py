"""Kernels of GEGLU: gelu(gate) * up, flat over contiguous memory or over strided rows.

tanh GELU needs no tanh: 0.5 * (1 + tanh(u)) = sigmoid(2u), so one exp and one division replace about eight vector operations.
"""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import known_multiple, my_chunk, my_elements, piece_tile, row_address, row_arguments

# 2u = x * (LINEAR + CUBIC * x^2) with u = sqrt(2/pi) * (x + 0.044715 x^3), torch.nn.functional.gelu(approximate="tanh").
LINEAR = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.07135481627260025)
# Constants carry their sign: `-a - b * x` compiles to one more vector operation than `b' * x + a'`.
MINUS_LINEAR = tl.constexpr(-1.5957691216057308)
MINUS_CUBIC = tl.constexpr(-0.07135481627260025)
SQRT_HALF = tl.constexpr(0.7071067811865476)
# 1 / sqrt(2 pi), the normal density at 0.
DENSITY = tl.constexpr(0.3989422804014327)


@triton.jit
def _gelu(x, TANH: tl.constexpr):
    if TANH:
        # x * c * x, not x * x * c: an instruction that reads one tile twice meets itself in the banks of UB.
        return x / (1.0 + tl.exp(x * (x * MINUS_CUBIC * x + MINUS_LINEAR)))
    else:
        return x * (0.5 * tl.math.erf(x * SQRT_HALF) + 0.5)


@triton.jit
def _gradients(dy, gate, up, TANH: tl.constexpr, EXACT: tl.constexpr):
    """dgate = dy * up * gelu'(gate) and dup = dy * gelu(gate), with gelu(x) = x * cdf(x).

    With cdf = sigmoid(2u): gelu' = cdf + gelu * (1 - cdf) * 2u', so that dgate = up * (dy * cdf + dup * (1 - cdf) * 2u').
    EXACT is for fp32 results: there cdf is not the difference of two numbers near 1, which would cancel.
    """
    if TANH:
        cube = gate * CUBIC * gate
        twice_u = gate * (cube + LINEAR)
        slope = cube * -3.0 + MINUS_LINEAR
        # A numerator of 1 would be multiplied into what follows, as a division each time; -1 and 0.5 are not.
        rest = -1.0 / (tl.exp(twice_u) + 1.0)  # cdf - 1
        slope = rest * slope
        if EXACT:
            cdf = 0.5 / (tl.exp(twice_u * -1.0) * 0.5 + 0.5)
        else:
            cdf = rest + 1.0
        dy_cdf = dy * cdf
        dup = dy_cdf * gate
        return up * (dy_cdf + dup * slope), dup
    else:
        cdf = 0.5 * tl.math.erf(gate * SQRT_HALF) + 0.5
        slope = gate * (DENSITY * tl.exp(gate * -0.5 * gate))
        return dy * up * (cdf + slope), dy * (gate * cdf)


@triton.jit(do_not_specialize=["elements"])
def geglu_forward_kernel(GATE, UP, OUT, elements, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, ONE_TILE: tl.constexpr, TANH: tl.constexpr):
    """Contiguous. Moves: read gate and up, write out."""
    if ALIGNED:
        elements = known_multiple(elements)
    lane = tl.arange(0, BLOCK)
    first, last, trips = my_elements(elements, BLOCK, ONE_TILE)
    for trip in range(trips):
        base = first + tl.cast(trip, tl.int64) * BLOCK
        mask = lane < tl.minimum(last - base, BLOCK).to(tl.int32)
        up = tl.load(UP + base + lane, mask=mask, other=0.0).to(tl.float32)
        gate = tl.load(GATE + base + lane, mask=mask, other=0.0).to(tl.float32)
        out = _gelu(gate, TANH) * up
        tl.store(OUT + base + lane, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["elements"])
def geglu_backward_kernel(
    DY, GATE, UP, DGATE, DUP, elements,
    BLOCK: tl.constexpr, ALIGNED: tl.constexpr, ONE_TILE: tl.constexpr, TANH: tl.constexpr,
    NEED_DGATE: tl.constexpr, NEED_DUP: tl.constexpr,
):  # fmt: skip
    """Contiguous. Moves: read dy, gate and up, write dgate and dup (which may be gate and up themselves)."""
    if ALIGNED:
        elements = known_multiple(elements)
    lane = tl.arange(0, BLOCK)
    first, last, trips = my_elements(elements, BLOCK, ONE_TILE)
    for trip in range(trips):
        base = first + tl.cast(trip, tl.int64) * BLOCK
        mask = lane < tl.minimum(last - base, BLOCK).to(tl.int32)
        dy = tl.load(DY + base + lane, mask=mask, other=0.0).to(tl.float32)
        # dup does not depend on up.
        up = tl.load(UP + base + lane, mask=mask, other=0.0).to(tl.float32) if NEED_DGATE else dy
        gate = tl.load(GATE + base + lane, mask=mask, other=0.0).to(tl.float32)
        dgate, dup = _gradients(dy, gate, up, TANH, GATE.dtype.element_ty == tl.float32)
        if NEED_DGATE:
            tl.store(DGATE + base + lane, dgate.to(DGATE.dtype.element_ty), mask=mask)
        if NEED_DUP:
            tl.store(DUP + base + lane, dup.to(DUP.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("gate", "up", "out"))
def geglu_forward_rows_kernel(
    GATE, UP, OUT, outer, middle, inner, gate_outer, gate_middle, gate_row, up_outer, up_middle, up_row, out_outer, out_middle, out_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """Strided rows (packed gate|up, slices). Moves: read gate and up, write out."""
    lane = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    first, last = my_chunk(outer * middle * tl.cdiv(inner, ROWS) * ((n_cols + COLS - 1) // COLS))
    for tile in range(first, last):
        block, row, column = piece_tile(tile, inner, n_cols, ROWS, COLS)
        mask = (lane < inner - row) & (cols < n_cols - column)
        gate_at = row_address(GATE, block, row, middle, gate_outer, gate_middle, gate_row, ONE_BLOCK) + column + (lane * gate_row + cols)
        up_at = row_address(UP, block, row, middle, up_outer, up_middle, up_row, ONE_BLOCK) + column + (lane * up_row + cols)
        out_at = row_address(OUT, block, row, middle, out_outer, out_middle, out_row, ONE_BLOCK) + column + (lane * out_row + cols)
        up = tl.load(up_at, mask=mask, other=0.0).to(tl.float32)
        gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
        out = _gelu(gate, TANH) * up
        tl.store(out_at, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("dy", "gate", "up", "dgate", "dup"))
def geglu_backward_rows_kernel(
    DY, GATE, UP, DGATE, DUP, outer, middle, inner, dy_outer, dy_middle, dy_row, gate_outer, gate_middle, gate_row,
    up_outer, up_middle, up_row, dgate_outer, dgate_middle, dgate_row, dup_outer, dup_middle, dup_row,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
    TANH: tl.constexpr, NEED_DGATE: tl.constexpr, NEED_DUP: tl.constexpr,
):  # fmt: skip
    """Strided rows. Moves: read dy, gate and up, write dgate and dup (which may be gate and up themselves)."""
    lane = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    first, last = my_chunk(outer * middle * tl.cdiv(inner, ROWS) * ((n_cols + COLS - 1) // COLS))
    for tile in range(first, last):
        block, row, column = piece_tile(tile, inner, n_cols, ROWS, COLS)
        mask = (lane < inner - row) & (cols < n_cols - column)
        dy_at = row_address(DY, block, row, middle, dy_outer, dy_middle, dy_row, ONE_BLOCK) + column + (lane * dy_row + cols)
        gate_at = row_address(GATE, block, row, middle, gate_outer, gate_middle, gate_row, ONE_BLOCK) + column + (lane * gate_row + cols)
        dy = tl.load(dy_at, mask=mask, other=0.0).to(tl.float32)
        up = dy
        if NEED_DGATE:
            up_at = row_address(UP, block, row, middle, up_outer, up_middle, up_row, ONE_BLOCK) + column + (lane * up_row + cols)
            up = tl.load(up_at, mask=mask, other=0.0).to(tl.float32)
        gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
        dgate, dup = _gradients(dy, gate, up, TANH, GATE.dtype.element_ty == tl.float32)
        if NEED_DGATE:
            dgate_base = row_address(DGATE, block, row, middle, dgate_outer, dgate_middle, dgate_row, ONE_BLOCK)
            tl.store(dgate_base + column + (lane * dgate_row + cols), dgate.to(DGATE.dtype.element_ty), mask=mask)
        if NEED_DUP:
            dup_base = row_address(DUP, block, row, middle, dup_outer, dup_middle, dup_row, ONE_BLOCK)
            tl.store(dup_base + column + (lane * dup_row + cols), dup.to(DUP.dtype.element_ty), mask=mask)
