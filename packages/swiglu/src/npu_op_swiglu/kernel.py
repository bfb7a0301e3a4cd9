"""Kernels of SwiGLU: silu(gate_multiplier * gate) * up * down_multiplier, flat over contiguous memory or over strided rows."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.tiles import known_multiple, my_chunk, my_elements, piece_tile, row_address, row_arguments


@triton.jit
def _forward(gate, up, gate_multiplier, down_multiplier, SCALE_GATE: tl.constexpr, SCALE_DOWN: tl.constexpr):
    if SCALE_GATE:
        gate = gate * gate_multiplier
    # gate * -1.0, because -gate compiles to a multiplication and an addition of 0.
    out = gate / (1.0 + tl.exp(gate * -1.0)) * up
    if SCALE_DOWN:
        out = out * down_multiplier
    return out


@triton.jit
def _gradients(
    dy, gate, up, gate_multiplier, down_multiplier, SCALE_GATE: tl.constexpr, SCALE_DOWN: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """dgate = dy * up * silu'(gate) and dup = dy * silu(gate), with s the sigmoid: silu' = s + silu * (1 - s).
    So dgate = up * (dy * s + dup * (1 - s)).

    EXACT is for fp32 results: there s is not the difference of two numbers near 1, which would cancel.
    """
    if SCALE_GATE:
        gate = gate * gate_multiplier
    if SCALE_DOWN:
        dy = dy * down_multiplier
    # A numerator of 1 would be multiplied into what follows, as a division each time; -1 and 0.5 are not.
    rest = -1.0 / (tl.exp(gate) + 1.0)  # s - 1
    if EXACT:
        sigmoid = 0.5 / (tl.exp(gate * -1.0) * 0.5 + 0.5)
    else:
        sigmoid = rest + 1.0
    dy_sigmoid = dy * sigmoid
    dup = dy_sigmoid * gate
    dgate = up * (dy_sigmoid - dup * rest)
    if SCALE_GATE:
        dgate = dgate * gate_multiplier
    return dgate, dup


@triton.jit(do_not_specialize=["elements"])
def swiglu_forward_kernel(
    GATE, UP, OUT, elements, gate_multiplier, down_multiplier,
    BLOCK: tl.constexpr, ALIGNED: tl.constexpr, ONE_TILE: tl.constexpr, SCALE_GATE: tl.constexpr, SCALE_DOWN: tl.constexpr,
):  # fmt: skip
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
        out = _forward(gate, up, gate_multiplier, down_multiplier, SCALE_GATE, SCALE_DOWN)
        tl.store(OUT + base + lane, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["elements"])
def swiglu_backward_kernel(
    DY, GATE, UP, DGATE, DUP, elements, gate_multiplier, down_multiplier,
    BLOCK: tl.constexpr, ALIGNED: tl.constexpr, ONE_TILE: tl.constexpr, SCALE_GATE: tl.constexpr, SCALE_DOWN: tl.constexpr,
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
        dgate, dup = _gradients(dy, gate, up, gate_multiplier, down_multiplier, SCALE_GATE, SCALE_DOWN, GATE.dtype.element_ty == tl.float32)
        if NEED_DGATE:
            tl.store(DGATE + base + lane, dgate.to(DGATE.dtype.element_ty), mask=mask)
        if NEED_DUP:
            tl.store(DUP + base + lane, dup.to(DUP.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("gate", "up", "out"))
def swiglu_forward_rows_kernel(
    GATE, UP, OUT, outer, middle, inner, gate_outer, gate_middle, gate_row, up_outer, up_middle, up_row, out_outer, out_middle, out_row,
    gate_multiplier, down_multiplier,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
    SCALE_GATE: tl.constexpr, SCALE_DOWN: tl.constexpr,
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
        gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(up_at, mask=mask, other=0.0).to(tl.float32)
        out = _forward(gate, up, gate_multiplier, down_multiplier, SCALE_GATE, SCALE_DOWN)
        tl.store(out_at, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=row_arguments("dy", "gate", "up", "dgate", "dup"))
def swiglu_backward_rows_kernel(
    DY, GATE, UP, DGATE, DUP, outer, middle, inner, dy_outer, dy_middle, dy_row, gate_outer, gate_middle, gate_row,
    up_outer, up_middle, up_row, dgate_outer, dgate_middle, dgate_row, dup_outer, dup_middle, dup_row, gate_multiplier, down_multiplier,
    n_cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ONE_BLOCK: tl.constexpr,
    SCALE_GATE: tl.constexpr, SCALE_DOWN: tl.constexpr, NEED_DGATE: tl.constexpr, NEED_DUP: tl.constexpr,
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
        gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
        up = gate
        if NEED_DGATE:
            up_at = row_address(UP, block, row, middle, up_outer, up_middle, up_row, ONE_BLOCK) + column + (lane * up_row + cols)
            up = tl.load(up_at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_at, mask=mask, other=0.0).to(tl.float32)
        dgate, dup = _gradients(dy, gate, up, gate_multiplier, down_multiplier, SCALE_GATE, SCALE_DOWN, GATE.dtype.element_ty == tl.float32)
        if NEED_DGATE:
            dgate_base = row_address(DGATE, block, row, middle, dgate_outer, dgate_middle, dgate_row, ONE_BLOCK)
            tl.store(dgate_base + column + (lane * dgate_row + cols), dgate.to(DGATE.dtype.element_ty), mask=mask)
        if NEED_DUP:
            dup_base = row_address(DUP, block, row, middle, dup_outer, dup_middle, dup_row, ONE_BLOCK)
            tl.store(dup_base + column + (lane * dup_row + cols), dup.to(DUP.dtype.element_ty), mask=mask)
