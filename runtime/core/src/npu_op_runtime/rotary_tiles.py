"""Device functions of the rotary operators: angles of a tile of tokens, and the rotation of some heads of those tokens.

A head's rotated columns are HALF pairs: (x[j], x[j + HALF]) in half layout, (x[2j], x[2j + 1]) interleaved. Imports Triton: only an
operator's kernel.py imports this.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import known_multiple, my_rows, row_tile


def heads_arguments(*angles: str) -> list[str]:
    """Arguments of a rotary kernel that depend on batch and sequence length: not specialised, or each length compiles again."""
    strides = [f"{tensor}_{level}" for tensor in ("q", "k", "q_out", "k_out") for level in ("batch", "token", "head")]
    return ["batches", "tokens", *strides, *(f"{angle}_{level}" for angle in angles for level in ("batch", "token"))]


@triton.jit
def my_heads(batches, tokens, TOKENS: tl.constexpr, PIECES: tl.constexpr, ONE_BLOCK: tl.constexpr, ONE_TILE: tl.constexpr):
    """This program's share of tokens x heads as (first, last, steps) for `heads_tile`: all pieces of a tile of tokens, then the next.

    ONE_TILE (CUDA, where each piece of each tile has a program): there is nothing to share out, and no loop.
    """
    if ONE_TILE:
        return 0, tokens, 1
    else:
        first, last, trips = my_rows(batches, tokens, TOKENS, ONE_BLOCK)
        return first, last, trips * PIECES


@triton.jit
def heads_tile(step, first, last, tokens, TOKENS: tl.constexpr, PIECES: tl.constexpr, ONE_BLOCK: tl.constexpr, ONE_TILE: tl.constexpr):
    """Batch and first token of a step's tile, how many tokens from there on are its own, and its piece of the heads."""
    if ONE_TILE:
        step = tl.program_id(0)
    trip = step // PIECES
    batch, token, left = row_tile(trip, first, last, tokens, TOKENS, ONE_BLOCK)
    return batch, token, left, step - trip * PIECES


@triton.jit
def angle_rows(ANGLES, batch, token, batch_stride, token_stride, ALIGNED: tl.constexpr):
    """Address of a token's row of angles, and the stride to the next."""
    if ALIGNED:
        batch_stride = known_multiple(batch_stride)
        token_stride = known_multiple(token_stride)
    return ANGLES + tl.cast(batch, tl.int64) * batch_stride + tl.cast(token, tl.int64) * token_stride, token_stride


@triton.jit
def load_pairs(
    ANGLES, batch, token, left, batch_stride, token_stride,
    TOKENS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """First and second members of the HALF pairs of TOKENS rows of angles, fp32, as (TOKENS, 1, HALF_BLOCK): once for all heads."""
    rows, token_stride = angle_rows(ANGLES, batch, token, batch_stride, token_stride, ALIGNED)
    lane = tl.arange(0, TOKENS)[:, None]
    exists = lane < left
    if INTERLEAVED:
        cols = tl.arange(0, 2 * HALF_BLOCK)[None, :]
        mask = exists & (cols < 2 * HALF) if HALF_BLOCK != HALF else exists
        pairs = tl.load(rows + (lane * token_stride + cols), mask=mask, other=0.0)
        first, second = tl.split(tl.reshape(pairs, (TOKENS, HALF_BLOCK, 2)))
    else:
        cols = tl.arange(0, HALF_BLOCK)[None, :]
        mask = exists & (cols < HALF) if HALF_BLOCK != HALF else exists
        first = tl.load(rows + (lane * token_stride + cols), mask=mask, other=0.0)
        second = tl.load(rows + HALF + (lane * token_stride + cols), mask=mask, other=0.0)
    return first.to(tl.float32)[:, None, :], second.to(tl.float32)[:, None, :]


@triton.jit
def _rotated(a, b, cos_a, cos_b, sin_a, sin_b, INVERSE: tl.constexpr):
    if INVERSE:
        return a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        return a * cos_a - b * sin_a, b * cos_b + a * sin_b


@triton.jit
def _rows_of_heads(
    BASE, batch, token, left, head, batch_stride, token_stride, head_stride,
    N_HEADS: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, PIECES: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A scalar int64 base, the int32 offset of each row from it, and which rows there are."""
    if ALIGNED:
        batch_stride = known_multiple(batch_stride)
        token_stride = known_multiple(token_stride)
        head_stride = known_multiple(head_stride)
    lane = tl.arange(0, TOKENS)[:, None, None]
    heads = tl.arange(0, HEADS)[None, :, None]
    exists = lane < left
    if HEADS * PIECES != N_HEADS:
        exists = exists & (heads < N_HEADS - head)
    base = BASE + tl.cast(batch, tl.int64) * batch_stride + tl.cast(token, tl.int64) * token_stride + tl.cast(head, tl.int64) * head_stride
    return base, lane * token_stride + heads * head_stride, exists


@triton.jit
def _load_heads(
    X, batch, token, left, head, x_batch, x_token, x_head,
    N_HEADS: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, PIECES: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Heads `head` to `head + HEADS` of `left` tokens (TOKENS at most), as they lie in memory, for `_store_heads`.

    Two tiles of halves; interleaved pairs are one tile of whole rows, or of words where X is of int32, and come as both results.
    """
    base, at, exists = _rows_of_heads(X, batch, token, left, head, x_batch, x_token, x_head, N_HEADS, TOKENS, HEADS, PIECES, ALIGNED)
    if INTERLEAVED:
        # Whole rows, parted on chip: a load of every other column would move everything twice.
        columns: tl.constexpr = HALF if X.dtype.element_ty == tl.int32 else 2 * HALF
        block: tl.constexpr = HALF_BLOCK if X.dtype.element_ty == tl.int32 else 2 * HALF_BLOCK
        cols = tl.arange(0, block)[None, None, :]
        mask = exists & (cols < columns) if block != columns else exists
        first = tl.load(base + (at + cols), mask=mask, other=0)
        second = first
    else:
        cols = tl.arange(0, HALF_BLOCK)[None, None, :]
        mask = exists & (cols < HALF) if HALF_BLOCK != HALF else exists
        first = tl.load(base + (at + cols), mask=mask, other=0)
        second = tl.load(base + HALF + (at + cols), mask=mask, other=0)
    return first, second


@triton.jit
def _store_heads(
    first, second, X, OUT, batch, token, left, head, x_batch, x_token, x_head, out_batch, out_token, out_head, cos_a, cos_b, sin_a, sin_b,
    N_HEADS: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, PIECES: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotates what `_load_heads` loaded from X and writes it to OUT, which may be X; copies REST columns behind.

    INVERSE is the transposed rotation, the gradient. Moves: write TOKENS x HEADS rows of 2 HALF + REST columns, read the last REST.
    """
    base, at, exists = _rows_of_heads(
        OUT, batch, token, left, head, out_batch, out_token, out_head, N_HEADS, TOKENS, HEADS, PIECES, ALIGNED
    )
    dtype: tl.constexpr = OUT.dtype.element_ty
    words: tl.constexpr = dtype == tl.int32
    columns: tl.constexpr = HALF if words else 2 * HALF
    if words:
        cols = tl.arange(0, HALF_BLOCK)[None, None, :]
        mask = exists & (cols < HALF) if HALF_BLOCK != HALF else exists
        # The upper half of an fp32 number is a bf16 number: a mask and a shift part a pair, where shuffles would cost more than all else.
        a = (first << 16).to(tl.float32, bitcast=True)
        b = (first & -65536).to(tl.float32, bitcast=True)
        a, b = _rotated(a, b, cos_a, cos_b, sin_a, sin_b, INVERSE)
        a = a.to(tl.bfloat16).to(tl.float32).to(tl.int32, bitcast=True)
        b = b.to(tl.bfloat16).to(tl.float32).to(tl.int32, bitcast=True)
        tl.store(base + (at + cols), b | ((a >> 16) & 65535), mask=mask)
    elif INTERLEAVED:
        cols = tl.arange(0, 2 * HALF_BLOCK)[None, None, :]
        mask = exists & (cols < 2 * HALF) if HALF_BLOCK != HALF else exists
        a, b = tl.split(tl.reshape(first, (TOKENS, HEADS, HALF_BLOCK, 2)))
        a, b = _rotated(a.to(tl.float32), b.to(tl.float32), cos_a, cos_b, sin_a, sin_b, INVERSE)
        y = tl.reshape(tl.join(a.to(dtype), b.to(dtype)), (TOKENS, HEADS, 2 * HALF_BLOCK))
        tl.store(base + (at + cols), y, mask=mask)
    else:
        cols = tl.arange(0, HALF_BLOCK)[None, None, :]
        mask = exists & (cols < HALF) if HALF_BLOCK != HALF else exists
        a, b = _rotated(first.to(tl.float32), second.to(tl.float32), cos_a, cos_b, sin_a, sin_b, INVERSE)
        tl.store(base + (at + cols), a.to(dtype), mask=mask)
        tl.store(base + HALF + (at + cols), b.to(dtype), mask=mask)
    if REST > 0:
        x_base, x_at, _ = _rows_of_heads(X, batch, token, left, head, x_batch, x_token, x_head, N_HEADS, TOKENS, HEADS, PIECES, ALIGNED)
        cols = tl.arange(0, REST_BLOCK)[None, None, :]
        mask = exists & (cols < REST) if REST_BLOCK != REST else exists
        rest = tl.load(x_base + columns + (x_at + cols), mask=mask, other=0)
        tl.store(base + columns + (at + cols), rest, mask=mask)


@triton.jit
def rotate_heads(
    X, OUT, batch, token, left, head, x_batch, x_token, x_head, out_batch, out_token, out_head, cos_a, cos_b, sin_a, sin_b,
    N_HEADS: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, PIECES: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotates heads of one tensor: `_load_heads`, then `_store_heads`."""
    first, second = _load_heads(
        X, batch, token, left, head, x_batch, x_token, x_head, N_HEADS, TOKENS, HEADS, PIECES, HALF, HALF_BLOCK, ALIGNED, INTERLEAVED
    )
    _store_heads(
        first, second, X, OUT, batch, token, left, head, x_batch, x_token, x_head, out_batch, out_token, out_head,
        cos_a, cos_b, sin_a, sin_b, N_HEADS, TOKENS, HEADS, PIECES, HALF, HALF_BLOCK, REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
    )  # fmt: skip


@triton.jit
def rotate_qk(
    Q, K, Q_OUT, K_OUT, batch, token, left, piece, q_batch, q_token, q_head, k_batch, k_token, k_head,
    q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, cos_a, cos_b, sin_a, sin_b,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, TOKENS: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr, PIECES: tl.constexpr,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotates a piece of the heads of q and a piece of those of k, where there are any.

    All loads first: what is stored may be where the next load reads, as far as a compiler knows, and it would wait.
    """
    if Q_HEADS > 0:
        q_first, q_second = _load_heads(
            Q, batch, token, left, piece * Q_TILE, q_batch, q_token, q_head,
            Q_HEADS, TOKENS, Q_TILE, PIECES, HALF, HALF_BLOCK, ALIGNED, INTERLEAVED,
        )  # fmt: skip
    if K_HEADS > 0:
        k_first, k_second = _load_heads(
            K, batch, token, left, piece * K_TILE, k_batch, k_token, k_head,
            K_HEADS, TOKENS, K_TILE, PIECES, HALF, HALF_BLOCK, ALIGNED, INTERLEAVED,
        )  # fmt: skip
    if Q_HEADS > 0:
        _store_heads(
            q_first, q_second, Q, Q_OUT, batch, token, left, piece * Q_TILE, q_batch, q_token, q_head,
            q_out_batch, q_out_token, q_out_head, cos_a, cos_b, sin_a, sin_b, Q_HEADS, TOKENS, Q_TILE, PIECES, HALF, HALF_BLOCK,
            REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
        )  # fmt: skip
    if K_HEADS > 0:
        _store_heads(
            k_first, k_second, K, K_OUT, batch, token, left, piece * K_TILE, k_batch, k_token, k_head,
            k_out_batch, k_out_token, k_out_head, cos_a, cos_b, sin_a, sin_b, K_HEADS, TOKENS, K_TILE, PIECES, HALF, HALF_BLOCK,
            REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
        )  # fmt: skip
