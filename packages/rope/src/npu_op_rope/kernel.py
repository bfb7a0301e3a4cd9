"""The kernel of rotary position embeddings: q and k in one launch, forward and backward, half and interleaved."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.rotary_tiles import heads_arguments, heads_tile, load_pairs, my_heads, rotate_qk


@triton.jit(do_not_specialize=heads_arguments("cos", "sin"))
def rotary_kernel(
    Q, K, Q_OUT, K_OUT, COS, SIN, batches, tokens, q_batch, q_token, q_head, k_batch, k_token, k_head,
    q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, cos_batch, cos_token, sin_batch, sin_token,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, TOKENS: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr, PIECES: tl.constexpr,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr, ONE_TILE: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Moves: read and write q and k, read a row of cos and one of sin per token (again per piece where the heads do not fit at once)."""
    first, last, steps = my_heads(batches, tokens, TOKENS, PIECES, ONE_BLOCK, ONE_TILE)
    for step in range(steps):
        batch, token, left, piece = heads_tile(step, first, last, tokens, TOKENS, PIECES, ONE_BLOCK, ONE_TILE)
        cos_a, cos_b = load_pairs(COS, batch, token, left, cos_batch, cos_token, TOKENS, HALF, HALF_BLOCK, ALIGNED, INTERLEAVED)
        sin_a, sin_b = load_pairs(SIN, batch, token, left, sin_batch, sin_token, TOKENS, HALF, HALF_BLOCK, ALIGNED, INTERLEAVED)
        rotate_qk(
            Q, K, Q_OUT, K_OUT, batch, token, left, piece, q_batch, q_token, q_head, k_batch, k_token, k_head,
            q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, cos_a, cos_b, sin_a, sin_b,
            Q_HEADS, K_HEADS, TOKENS, Q_TILE, K_TILE, PIECES, HALF, HALF_BLOCK, REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
        )  # fmt: skip
