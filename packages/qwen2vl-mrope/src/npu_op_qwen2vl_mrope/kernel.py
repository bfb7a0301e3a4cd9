"""The kernel of Qwen2-VL's multimodal rotary embeddings: three axes, q and k in one launch, forward and backward."""

from __future__ import annotations

import triton
import triton.language as tl

from npu_op_runtime.rotary_tiles import angle_rows, heads_arguments, heads_tile, load_pairs, my_heads, rotate_qk
from npu_op_runtime.tiles import known_multiple


@triton.jit
def _load_axes(
    ANGLES, batch, token, left, batch_stride, token_stride, axis_stride,
    TOKENS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    GATHER: tl.constexpr, TEMPORAL: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """As `load_pairs`, each column from the axis of its section.

    GATHER (CUDA) reads just those; the NPU, which moves whole rows, reads the rows of all axes and selects.
    """
    cols = tl.arange(0, HALF_BLOCK)[None, :]
    if GATHER:
        rows, token_stride = angle_rows(ANGLES, batch, token, batch_stride, token_stride, ALIGNED)
        if ALIGNED:
            axis_stride = known_multiple(axis_stride)
        axis = (cols >= TEMPORAL).to(tl.int64) + (cols >= TEMPORAL + HEIGHT).to(tl.int64)
        lane = tl.arange(0, TOKENS)[:, None]
        at = axis * axis_stride + (lane * token_stride + cols)
        mask = (lane < left) & (cols < HALF) if HALF_BLOCK != HALF else lane < left
        first = tl.load(rows + at, mask=mask, other=0.0)
        second = tl.load(rows + HALF + at, mask=mask, other=0.0)
        return first.to(tl.float32)[:, None, :], second.to(tl.float32)[:, None, :]
    else:
        height = ANGLES + tl.cast(axis_stride, tl.int64)
        width = height + tl.cast(axis_stride, tl.int64)
        t_first, t_second = load_pairs(ANGLES, batch, token, left, batch_stride, token_stride, TOKENS, HALF, HALF_BLOCK, ALIGNED, False)
        h_first, h_second = load_pairs(height, batch, token, left, batch_stride, token_stride, TOKENS, HALF, HALF_BLOCK, ALIGNED, False)
        w_first, w_second = load_pairs(width, batch, token, left, batch_stride, token_stride, TOKENS, HALF, HALF_BLOCK, ALIGNED, False)
        temporal = (cols < TEMPORAL)[:, None, :]
        not_width = (cols < TEMPORAL + HEIGHT)[:, None, :]
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
    ONE_BLOCK: tl.constexpr, ONE_TILE: tl.constexpr, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    GATHER: tl.constexpr, TEMPORAL: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """Moves: read and write q and k, read three rows of cos and three of sin per token (CUDA: one of each)."""
    first, last, steps = my_heads(batches, tokens, TOKENS, PIECES, ONE_BLOCK, ONE_TILE)
    for step in range(steps):
        batch, token, left, piece = heads_tile(step, first, last, tokens, TOKENS, PIECES, ONE_BLOCK, ONE_TILE)
        cos_a, cos_b = _load_axes(
            COS, batch, token, left, cos_batch, cos_token, cos_axis, TOKENS, HALF, HALF_BLOCK, ALIGNED, GATHER, TEMPORAL, HEIGHT
        )
        sin_a, sin_b = _load_axes(
            SIN, batch, token, left, sin_batch, sin_token, sin_axis, TOKENS, HALF, HALF_BLOCK, ALIGNED, GATHER, TEMPORAL, HEIGHT
        )
        rotate_qk(
            Q, K, Q_OUT, K_OUT, batch, token, left, piece, q_batch, q_token, q_head, k_batch, k_token, k_head,
            q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, cos_a, cos_b, sin_a, sin_b,
            Q_HEADS, K_HEADS, TOKENS, Q_TILE, K_TILE, PIECES, HALF, HALF_BLOCK, REST, REST_BLOCK, ALIGNED, INTERLEAVED, INVERSE,
        )  # fmt: skip
