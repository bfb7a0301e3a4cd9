"""The kernel of the rotary embedding of latent attention: all heads of q and those of k in one launch, half and interleaved."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.rotary_tiles import angle_rows, heads_arguments, heads_tile, my_heads, rotate_heads, rotate_qk
from npu_op_runtime.tiles import row_tile


@triton.jit
def _load_angles(
    ANGLES, token, left, token_stride, TOKENS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):  # fmt: skip
    """One fp32 number for each pair of TOKENS rows, as (TOKENS, 1, HALF_BLOCK): once for all heads."""
    rows, token_stride = angle_rows(ANGLES, 0, token, 0, token_stride, ALIGNED)
    lane = tl.arange(0, TOKENS)[:, None]
    cols = tl.arange(0, HALF_BLOCK)[None, :]
    mask = (lane < left) & (cols < HALF) if HALF_BLOCK != HALF else lane < left
    return tl.load(rows + (lane * token_stride + cols), mask=mask, other=0.0).to(tl.float32)[:, None, :]


@triton.jit
def _share(tokens, program, programs):
    """First and one-past-last token of the program of that number among `programs`; none for other numbers."""
    per_program = tokens // programs
    extra = tokens - per_program * programs
    first = program * per_program + tl.minimum(program, extra)
    count = per_program + (program < extra).to(tl.int32)
    return first, first + tl.where((program >= 0) & (program < programs), count, 0)


@triton.jit(do_not_specialize=heads_arguments("cos", "sin"))
def rope_qk_mqa_kernel(
    Q, K, Q_OUT, K_OUT, COS, SIN, batches, tokens, q_batch, q_token, q_head, k_batch, k_token, k_head,
    q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, cos_batch, cos_token, sin_batch, sin_token,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, TOKENS: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr, PIECES: tl.constexpr,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr, ONE_TILE: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    K_TOKENS: tl.constexpr, K_PIECES: tl.constexpr, K_APART: tl.constexpr,
):  # fmt: skip
    """One batch. Moves: read and write q and k, read half a row of cos and of sin per token and tensor (again per piece).

    K_APART gives k its share of the programs, and tiles of its own; else it goes with q.
    """
    if K_APART:
        program = tl.program_id(0)
        programs = tl.num_programs(0)
        # cos and sin of a token are as many bytes as a head.
        rows: tl.constexpr = Q_HEADS + 1 + K_HEADS + 1
        of_q = programs - tl.minimum((programs * (K_HEADS + 1) + (rows - 1)) // rows, programs - 1)
        first, last = _share(tokens, program, of_q)
        for step in range(tl.cdiv(last - first, TOKENS) * PIECES):
            trip = step // PIECES
            piece = step - trip * PIECES
            batch, token, left = row_tile(trip, first, last, tokens, TOKENS, True)
            cos = _load_angles(COS, token, left, cos_token, TOKENS, HALF, HALF_BLOCK, ALIGNED)
            sin = _load_angles(SIN, token, left, sin_token, TOKENS, HALF, HALF_BLOCK, ALIGNED)
            rotate_heads(
                Q, Q_OUT, batch, token, left, piece * Q_TILE, q_batch, q_token, q_head, q_out_batch, q_out_token, q_out_head,
                cos, cos, sin, sin, Q_HEADS, TOKENS, Q_TILE, PIECES, HALF, HALF_BLOCK, REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
            )  # fmt: skip
        first, last = _share(tokens, program - of_q, programs - of_q)
        for step in range(tl.cdiv(last - first, K_TOKENS) * K_PIECES):
            trip = step // K_PIECES
            piece = step - trip * K_PIECES
            batch, token, left = row_tile(trip, first, last, tokens, K_TOKENS, True)
            cos = _load_angles(COS, token, left, cos_token, K_TOKENS, HALF, HALF_BLOCK, ALIGNED)
            sin = _load_angles(SIN, token, left, sin_token, K_TOKENS, HALF, HALF_BLOCK, ALIGNED)
            rotate_heads(
                K, K_OUT, batch, token, left, piece * K_TILE, k_batch, k_token, k_head, k_out_batch, k_out_token, k_out_head,
                cos, cos, sin, sin, K_HEADS, K_TOKENS, K_TILE, K_PIECES, HALF, HALF_BLOCK, REST, REST_BLOCK,
                ALIGNED, INTERLEAVED, INVERSE,
            )  # fmt: skip
    else:
        first, last, steps = my_heads(1, tokens, TOKENS, PIECES, True, ONE_TILE)
        for step in range(steps):
            batch, token, left, piece = heads_tile(step, first, last, tokens, TOKENS, PIECES, True, ONE_TILE)
            cos = _load_angles(COS, token, left, cos_token, TOKENS, HALF, HALF_BLOCK, ALIGNED)
            sin = _load_angles(SIN, token, left, sin_token, TOKENS, HALF, HALF_BLOCK, ALIGNED)
            rotate_qk(
                Q, K, Q_OUT, K_OUT, batch, token, left, piece, q_batch, q_token, q_head, k_batch, k_token, k_head,
                q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, cos, cos, sin, sin,
                Q_HEADS, K_HEADS, TOKENS, Q_TILE, K_TILE, PIECES, HALF, HALF_BLOCK, REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
            )  # fmt: skip
