"""Qwen2-VL's multimodal rotary embeddings: the public function, and the registered ops that it calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npu_op_runtime.checks import remembered, require_choice, require_same_device, require_shape, require_tensor
from npu_op_runtime.device import target_of
from npu_op_runtime.dtypes import require_dtype
from npu_op_runtime.rotary import require_heads
from npu_op_runtime.rotary_ops import register_rotation

from .reference import apply_multimodal_rotary_reference


def apply_multimodal_rotary(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mrope_section: Sequence[int],
    unsqueeze_dim: int = 1,
    *,
    inplace: bool = False,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q * cos + turn(q) * sin, and the same for k, with cos and sin composed of three axes; computed in fp32 and rounded once.

    Args:
        q: (batch, heads, sequence, head_dim) with `unsqueeze_dim` 1, (batch, sequence, heads, head_dim) with 2; fp16, bf16 or fp32;
            any layout whose last dimension is contiguous, transposed views too.
        k: as q with its own number of heads, or None.
        cos, sin: (3, batch, sequence, head_dim), fp16, bf16 or fp32: temporal, height, width. Constants.
        mrope_section: columns of each half that temporal, height and width take, in this order; they sum to head_dim / 2.
        unsqueeze_dim: where the dimension of heads is, as in transformers.
        inplace: write the results over q and k and return those.
        implementation: None (the kernel on NPU and CUDA tensors, the reference on CPU tensors), "triton" or "eager".

    Returns:
        q and k rotated, in their shapes, dtypes and memory orders; None for no k. Differentiable in q and k.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
        NotImplementedError: a named implementation cannot run, with the reason.
        ImportError: the kernel stack is missing or broken, with the command that mends it.
    """
    sections = checked_sections(mrope_section)
    return _apply(q, k, cos, sin, sections, unsqueeze_dim, inplace=inplace, implementation=implementation)


@remembered
def _check(q, k, cos, sin, sections, unsqueeze_dim, inplace):
    require_choice("unsqueeze_dim", unsqueeze_dim, (1, 2))
    require_choice("inplace", inplace, (False, True))
    require_heads(q, k, unsqueeze_dim)
    width = q.shape[-1]
    if 2 * sum(sections) != width:
        raise ValueError(f"mrope_section must sum to half of the head_dim of q, {width / 2:g} (got {list(sections)})")
    for argument, angle in (("cos", cos), ("sin", sin)):
        require_tensor(argument, angle)
        require_dtype(argument, angle)
        require_shape(argument, angle, (3, q.shape[0], q.shape[3 - unsqueeze_dim], width))
        if angle.requires_grad:
            raise ValueError(f"{argument} must not require a gradient: it is a constant (implementation='eager' differentiates it)")
    require_same_device(q=q, k=k, cos=cos, sin=sin)


def checked_sections(mrope_section: Sequence[int]) -> tuple[int, ...]:
    """`mrope_section` as a tuple.

    Raises:
        TypeError, ValueError: it is not three sizes.
    """
    if not isinstance(mrope_section, (list, tuple)) or not all(type(section) is int for section in mrope_section):
        raise TypeError(f"mrope_section must be a list or tuple of three int (got {mrope_section!r})")
    if len(mrope_section) != 3 or min(mrope_section) < 0:
        raise ValueError(f"mrope_section must be three sizes, none below 0 (got {list(mrope_section)})")
    return tuple(mrope_section)


def _rotation(q, cos, sin, sections, unsqueeze_dim):
    return {
        "module": "npu_op_qwen2vl_mrope.kernel", "name": "multimodal_rotary_kernel", "angles": (cos, sin), "half": q.shape[-1] // 2,
        "heads_dim": unsqueeze_dim, "interleaved": False,
        "GATHER": target_of(q).backend == "cuda", "TEMPORAL": sections[0], "HEIGHT": sections[1],
    }  # fmt: skip


def _vendor(*arguments):
    raise NotImplementedError("implementation='vendor' cannot run: torch_npu.npu_mrope takes positions and a cache, not cos and sin")


def _transposed(cos, sin, sections, unsqueeze_dim):
    # The other member of a pair takes the sine, with the other sign.
    return cos, -sin.roll(sin.shape[-1] // 2, -1), sections, unsqueeze_dim


_apply = register_rotation(
    "npu_op_qwen2vl_mrope",
    "Tensor cos, Tensor sin, int[] sections, int unsqueeze_dim",
    check=_check,
    rotation=_rotation,
    formula=apply_multimodal_rotary_reference,
    transposed=_transposed,
    vendor=_vendor,
)
