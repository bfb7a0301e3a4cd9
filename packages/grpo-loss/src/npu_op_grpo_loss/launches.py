"""Plans and launches of the kernels, on logits (B, L, V) or on one chunk of them (1, rows, V)."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from npu_op_runtime.device import Target
from npu_op_runtime.launch import launch, load_kernels
from npu_op_runtime.tiling import UB_BLOCK_BYTES, Buffer, RowPlan, programs
from npu_op_runtime.vocabulary import plan_vocabulary

from .options import Options
from .tokens import Known, Tokens

_KERNELS = "npu_op_grpo_loss.kernel"
_KINDS = {"cispo": "cispo", "sapo": "sapo"}
# Tokens of a tile where no logits are read.
_TOKENS = 256


# Columns of a tile of the rare rows that are read again: it is to leave room for the tile of the others.
_FEW = 256


# The buffers are those of kernel.py, the compile gate proves the sums: the streams, logits in fp32, sums, column numbers.
@functools.cache
def _plan(target: Target, n_cols: int, itemsize: int, bias_itemsize: int, streams: int) -> RowPlan:
    """Tiles of one row where they are wide: its shift and factors are then scalars beside the tile, which cost no pass over it."""
    biases = (Buffer(bias_itemsize, "columns", streamed=True), Buffer(4, "columns")) if bias_itemsize else ()
    plan = plan_vocabulary(target, n_cols, (*(Buffer(itemsize, streamed=True),) * streams, *(Buffer(4),) * 3, *biases), fewest=1)
    pieces = -(-n_cols // plan.cols)
    # A last tile that is shorter is filled up by the vector unit before it is loaded: narrower ones that leave no rest are faster.
    granule = UB_BLOCK_BYTES // itemsize
    exact = [count for count in range(pieces, pieces * 4 // 3 + 1) if n_cols % (count * granule) == 0]
    return replace(plan, cols=n_cols // exact[0]) if exact and target.backend != "cuda" else plan


def write_selected_logps(
    target: Target,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    ids: torch.Tensor,
    sums: torch.Tensor,
    logps: torch.Tensor,
    temperature: float,
) -> None:
    """Each row's shift and sum of exponentials in `sums` (2, B, L), and `logps` (B, L), of logits (B, L, V)."""
    blocks, inner, n_cols = logits.shape
    plan = _plan(target, n_cols, logits.element_size(), _itemsize(bias), 1)
    launch(
        load_kernels(_KERNELS, target.backend).selected_logps_kernel,
        programs(target, plan.row_tiles(blocks, inner), persistent=False),
        target,
        logits,
        logits,
        logits if bias is None else bias,
        ids,
        *sums,
        logps,
        blocks,
        inner,
        logits.stride(0),
        logits.stride(1),
        1.0 / temperature,
        num_warps=plan.num_warps,
        n_cols=n_cols,
        ROWS=plan.rows,
        COLS=plan.cols,
        FEW=min(plan.cols, _FEW),
        ONE_BLOCK=blocks == 1,
        HAS_BIAS=bias is not None,
        TEMPERED=temperature != 1.0,
    )


def write_losses(
    target: Target,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    tokens: Tokens,
    sums: torch.Tensor,
    known: Known | None,
    losses: torch.Tensor,
    kl: torch.Tensor | None,
    clip: torch.Tensor,
    coefficient: torch.Tensor | None,
    options: Options,
    *,
    in_place: bool,
    scale: float = 1.0,
) -> None:
    """Loss, KL and clipping of each token, and the gradient of the logits times `scale` over them or its factor in `coefficient`.

    With `known` (sequence level) `sums` is given and read; otherwise it is written.
    """
    blocks, inner, n_cols = logits.shape
    plan = _plan(target, n_cols, logits.element_size(), _itemsize(bias), 1 + 2 * in_place)
    if known is not None and not in_place:
        plan = RowPlan(_TOKENS, 1, plan.cols, resident=False, num_warps=4)
    old = tokens.old if known is None else known.log_ratio
    clips = options.loss_type != "cispo"
    launch(
        load_kernels(_KERNELS, target.backend).grpo_kernel,
        programs(target, plan.row_tiles(blocks, inner), persistent=False),
        target,
        logits,
        logits,
        logits,
        logits if bias is None else bias,
        tokens.ids,
        tokens.advantages,
        tokens.policy,
        tokens.slope,
        clip if tokens.penalty is None else tokens.penalty,
        clip if old is None else old,
        clip if tokens.ref is None else tokens.ref,
        *sums,
        clip if known is None else known.logps,
        clip if known is None or known.spread is None else known.spread,
        losses,
        clip if kl is None else kl,
        clip,
        clip if coefficient is None else coefficient,
        blocks,
        inner,
        logits.stride(0),
        logits.stride(1),
        1.0 / options.temperature,
        1.0 - options.epsilon_low,
        1.0 + options.epsilon_high if clips else options.epsilon_high,
        options.delta,
        options.sapo_temperature_pos,
        options.sapo_temperature_neg,
        scale,
        num_warps=plan.num_warps,
        n_cols=n_cols,
        ROWS=plan.rows,
        COLS=plan.cols,
        FEW=min(plan.cols, _FEW),
        ONE_BLOCK=blocks == 1,
        HAS_BIAS=bias is not None,
        TEMPERED=options.temperature != 1.0,
        KIND=_KINDS.get(options.loss_type, "clip"),
        HAS_OLD=old is not None,
        HAS_REF=tokens.penalty is not None,
        CORRECTED=options.use_bias_correction_kl,
        KNOWN=known is not None,
        IN_PLACE=in_place,
    )


def write_logits_gradient(
    target: Target,
    logits: torch.Tensor,
    gradient: torch.Tensor,
    ids: torch.Tensor,
    sums: torch.Tensor,
    coefficient: torch.Tensor,
    temperature: float,
) -> None:
    """`gradient` of logits, both (B, L, V), from the factor of each row."""
    blocks, inner, n_cols = logits.shape
    plan = _plan(target, n_cols, logits.element_size(), 0, 2)
    launch(
        load_kernels(_KERNELS, target.backend).logits_gradient_kernel,
        programs(target, plan.row_tiles(blocks, inner), persistent=False),
        target,
        logits,
        logits,
        gradient,
        ids,
        *sums,
        coefficient,
        blocks,
        inner,
        logits.stride(0),
        logits.stride(1),
        gradient.stride(0),
        gradient.stride(1),
        1.0 / temperature,
        num_warps=plan.num_warps,
        n_cols=n_cols,
        ROWS=plan.rows,
        COLS=plan.cols,
        ONE_BLOCK=blocks == 1,
        TEMPERED=temperature != 1.0,
    )


def _itemsize(bias: torch.Tensor | None) -> int:
    return 0 if bias is None else bias.element_size()
