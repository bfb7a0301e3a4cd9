"""Device functions of the rotary operators: angles of a tile of tokens, and the rotation of some heads of those tokens.

A head's rotated columns are HALF pairs: (x[j], x[j + HALF]) in half layout, (x[2j], x[2j + 1]) interleaved. Imports Triton: only an
operator's kernel.py imports this.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import known_multiple


def heads_arguments(*angles: str) -> list[str]:
    """Arguments of a rotary kernel that depend on batch and sequence length: not specialised, or each length compiles again."""
    strides = [f"{tensor}_{level}" for tensor in ("q", "k", "q_out", "k_out") for level in ("batch", "token", "head")]
    return ["batches", "tokens", *strides, *(f"{angle}_{level}" for angle in angles for level in ("batch", "token"))]


@triton.jit
def load_pairs(ROWS, left, row_stride, TOKENS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr):
    """First and second members of the HALF pairs of TOKENS rows, fp32, as (TOKENS, 1, HALF_BLOCK): once for all heads."""
    lane = tl.arange(0, TOKENS)[:, None]
    exists = lane < left
    if INTERLEAVED:
        cols = tl.arange(0, 2 * HALF_BLOCK)[None, :]
        mask = exists & (cols < 2 * HALF) if HALF_BLOCK != HALF else exists
        rows = tl.load(ROWS + (lane * row_stride + cols), mask=mask, other=0.0)
        first, second = tl.split(tl.reshape(rows, (TOKENS, HALF_BLOCK, 2)))
    else:
        cols = tl.arange(0, HALF_BLOCK)[None, :]
        mask = exists & (cols < HALF) if HALF_BLOCK != HALF else exists
        first = tl.load(ROWS + (lane * row_stride + cols), mask=mask, other=0.0)
        second = tl.load(ROWS + HALF + (lane * row_stride + cols), mask=mask, other=0.0)
    return first.to(tl.float32)[:, None, :], second.to(tl.float32)[:, None, :]


@triton.jit
def _rotated(a, b, cos_a, cos_b, sin_a, sin_b, INVERSE: tl.constexpr):
    if INVERSE:
        return a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        return a * cos_a - b * sin_a, b * cos_b + a * sin_b


@triton.jit
def rotate_heads(
    X, OUT, batch, token, left, head, x_batch, x_token, x_head, out_batch, out_token, out_head, cos_a, cos_b, sin_a, sin_b,
    N_HEADS: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, PIECES: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotates heads `head` to `head + HEADS` of `left` tokens (TOKENS at most) from X to OUT, which may be X; copies REST columns behind.

    INVERSE is the transposed rotation, the gradient. Moves: read and write TOKENS x HEADS rows of 2 HALF + REST columns.
    """
    if ALIGNED:
        x_batch = known_multiple(x_batch)
        x_token = known_multiple(x_token)
        x_head = known_multiple(x_head)
        out_batch = known_multiple(out_batch)
        out_token = known_multiple(out_token)
        out_head = known_multiple(out_head)
    lane = tl.arange(0, TOKENS)[:, None, None]
    heads = tl.arange(0, HEADS)[None, :, None]
    exists = lane < left
    if HEADS * PIECES != N_HEADS:
        exists = exists & (heads < N_HEADS - head)
    # Scalar int64 bases, int32 offsets inside a tile.
    x_base = X + tl.cast(batch, tl.int64) * x_batch + tl.cast(token, tl.int64) * x_token + tl.cast(head, tl.int64) * x_head
    out_base = OUT + tl.cast(batch, tl.int64) * out_batch + tl.cast(token, tl.int64) * out_token + tl.cast(head, tl.int64) * out_head
    x_at = lane * x_token + heads * x_head
    out_at = lane * out_token + heads * out_head
    dtype: tl.constexpr = OUT.dtype.element_ty
    if INTERLEAVED:
        cols = tl.arange(0, 2 * HALF_BLOCK)[None, None, :]
        mask = exists & (cols < 2 * HALF) if HALF_BLOCK != HALF else exists
        # Whole rows, parted on chip: a load of every other column would move everything twice.
        x = tl.load(x_base + (x_at + cols), mask=mask, other=0.0)
        a, b = tl.split(tl.reshape(x, (TOKENS, HEADS, HALF_BLOCK, 2)))
        a, b = _rotated(a.to(tl.float32), b.to(tl.float32), cos_a, cos_b, sin_a, sin_b, INVERSE)
        y = tl.reshape(tl.join(a.to(dtype), b.to(dtype)), (TOKENS, HEADS, 2 * HALF_BLOCK))
        tl.store(out_base + (out_at + cols), y, mask=mask)
    else:
        cols = tl.arange(0, HALF_BLOCK)[None, None, :]
        mask = exists & (cols < HALF) if HALF_BLOCK != HALF else exists
        a = tl.load(x_base + (x_at + cols), mask=mask, other=0.0).to(tl.float32)
        b = tl.load(x_base + HALF + (x_at + cols), mask=mask, other=0.0).to(tl.float32)
        a, b = _rotated(a, b, cos_a, cos_b, sin_a, sin_b, INVERSE)
        tl.store(out_base + (out_at + cols), a.to(dtype), mask=mask)
        tl.store(out_base + HALF + (out_at + cols), b.to(dtype), mask=mask)
    if REST > 0:
        cols = tl.arange(0, REST_BLOCK)[None, None, :]
        mask = exists & (cols < REST) if REST_BLOCK != REST else exists
        rest = tl.load(x_base + 2 * HALF + (x_at + cols), mask=mask, other=0.0)
        tl.store(out_base + 2 * HALF + (out_at + cols), rest, mask=mask)
