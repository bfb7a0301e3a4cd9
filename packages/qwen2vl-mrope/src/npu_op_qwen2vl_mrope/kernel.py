"""The kernel of Qwen2-VL's multimodal rotary embeddings: three axes, q and k in one launch, forward and backward."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.rotary_tiles import heads_arguments, load_heads, load_pairs, store_heads
from npu_op_runtime.tiles import my_rows, row_tile


@triton.jit
def _load_axes(
    ROWS, left, axis_stride, row_stride,
    TOKENS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, TEMPORAL: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """The pairs of TOKENS rows, each column from the axis of its section."""
    height = ROWS + tl.cast(axis_stride, tl.int64)
    width = height + tl.cast(axis_stride, tl.int64)
    t_first, t_second = load_pairs(ROWS, left, row_stride, TOKENS, HALF, HALF_BLOCK, False)
    h_first, h_second = load_pairs(height, left, row_stride, TOKENS, HALF, HALF_BLOCK, False)
    w_first, w_second = load_pairs(width, left, row_stride, TOKENS, HALF, HALF_BLOCK, False)
    cols = tl.arange(0, HALF_BLOCK)[None, None, :]
    temporal = cols < TEMPORAL
    not_width = cols < TEMPORAL + HEIGHT
    first = tl.where(temporal, t_first, tl.where(not_width, h_first, w_first))
    second = tl.where(temporal, t_second, tl.where(not_width, h_second, w_second))
    return first, second


@triton.jit(do_not_specialize=[*heads_arguments("cos", "sin"), "cos_axis", "sin_axis"])
def multimodal_rotary_kernel(
    Q, K, Q_OUT, K_OUT, COS, SIN, batches, tokens, q_batch, q_token, q_head, k_batch, k_token, k_head,
    q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, cos_batch, cos_token, sin_batch, sin_token,
    cos_axis, sin_axis,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, TOKENS: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr, PIECES: tl.constexpr,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    TEMPORAL: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """Moves: read and write q and k, read three rows of cos and three of sin per token."""
    first, last, trips = my_rows(batches, tokens, TOKENS, ONE_BLOCK)
    for step in range(trips * PIECES):
        trip = step // PIECES
        piece = step - trip * PIECES
        batch, token, left = row_tile(trip, first, last, tokens, TOKENS, ONE_BLOCK)
        cos_at = COS + tl.cast(batch, tl.int64) * cos_batch + tl.cast(token, tl.int64) * cos_token
        sin_at = SIN + tl.cast(batch, tl.int64) * sin_batch + tl.cast(token, tl.int64) * sin_token
        cos_a, cos_b = _load_axes(cos_at, left, cos_axis, cos_token, TOKENS, HALF, HALF_BLOCK, TEMPORAL, HEIGHT)
        sin_a, sin_b = _load_axes(sin_at, left, sin_axis, sin_token, TOKENS, HALF, HALF_BLOCK, TEMPORAL, HEIGHT)
        # All loads first: what is stored may be where the next load reads, as far as a compiler knows, and it would wait.
        if Q_HEADS > 0:
            q_first, q_second = load_heads(
                Q, batch, token, left, piece * Q_TILE, q_batch, q_token, q_head,
                Q_HEADS, TOKENS, Q_TILE, PIECES, HALF, HALF_BLOCK, ALIGNED, INTERLEAVED,
            )  # fmt: skip
        if K_HEADS > 0:
            k_first, k_second = load_heads(
                K, batch, token, left, piece * K_TILE, k_batch, k_token, k_head,
                K_HEADS, TOKENS, K_TILE, PIECES, HALF, HALF_BLOCK, ALIGNED, INTERLEAVED,
            )  # fmt: skip
        if Q_HEADS > 0:
            store_heads(
                q_first, q_second, Q, Q_OUT, batch, token, left, piece * Q_TILE, q_batch, q_token, q_head,
                q_out_batch, q_out_token, q_out_head, cos_a, cos_b, sin_a, sin_b, Q_HEADS, TOKENS, Q_TILE, PIECES, HALF, HALF_BLOCK,
                REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
            )  # fmt: skip
        if K_HEADS > 0:
            store_heads(
                k_first, k_second, K, K_OUT, batch, token, left, piece * K_TILE, k_batch, k_token, k_head,
                k_out_batch, k_out_token, k_out_head, cos_a, cos_b, sin_a, sin_b, K_HEADS, TOKENS, K_TILE, PIECES, HALF, HALF_BLOCK,
                REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
            )  # fmt: skip
