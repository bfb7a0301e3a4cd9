"""The table of cosines and sines of a model."""

from __future__ import annotations

from typing import Any

import torch

from npu_op_runtime.checks import require_choice, require_number, require_tensor, require_width
from npu_op_runtime.dtypes import FLOATS, require_dtype

from .op import gather_cos_sin

# Their angles depend on the length of the sequence at hand: one table cannot hold them.
_LENGTH_DEPENDENT = ("dynamic", "longrope")


class RotaryCache(torch.nn.Module):
    """Cosines and sines of all positions of a model, computed once; `forward(positions)` gathers those of a batch.

    It holds a constant and nothing else: no call changes it, and none remembers what it returned.

    Args:
        inv_freq: (pairs,), the angle of each pair per position, float.
        max_positions: rows of the table.
        attention_scaling: factor of cosines and sines (YaRN's).
        dtype: of the table; computed in fp32, as transformers does.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype or shape; the message names it.
    """

    cos_sin: torch.Tensor

    def __init__(
        self, inv_freq: torch.Tensor, max_positions: int, *, attention_scaling: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        require_tensor("inv_freq", inv_freq)
        require_dtype("inv_freq", inv_freq, (torch.float32, torch.float64))
        if inv_freq.dim() != 1 or inv_freq.numel() == 0:
            raise ValueError(f"inv_freq must have shape (pairs,) (got {tuple(inv_freq.shape)})")
        require_width("max_positions", max_positions)
        require_number("attention_scaling", attention_scaling)
        require_choice("dtype", dtype, FLOATS)
        angles = torch.arange(max_positions, device=inv_freq.device).float()[:, None] * inv_freq.float()
        table = torch.cat([angles.cos() * attention_scaling, angles.sin() * attention_scaling], dim=-1).to(dtype)
        self.register_buffer("cos_sin", table, persistent=False)

    @classmethod
    def from_config(
        cls,
        config: Any,
        max_positions: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> RotaryCache:
        """The table of a transformers config, its rope scaling included (needs transformers unless the type is "default").

        Args:
            config: with `rope_parameters`, and `qk_rope_head_dim`, `head_dim` or `hidden_size` and `num_attention_heads`.
            max_positions: rows; None for `config.max_position_embeddings`.
            dtype, device: of the table.

        Raises:
            TypeError, ValueError: a config without rope_parameters, or with a type that transformers does not know, by name.
            NotImplementedError: a rope type whose angles depend on the length of the sequence, by name.
        """
        parameters = getattr(config, "rope_parameters", None)
        if not isinstance(parameters, dict) or not {"rope_type", "rope_theta"} <= parameters.keys():
            raise TypeError(f"config must have rope_parameters with rope_type and rope_theta, as in transformers 5 (got {parameters!r})")
        rope_type, scaling = parameters["rope_type"], 1.0
        if rope_type in _LENGTH_DEPENDENT:
            raise NotImplementedError(f"rope type {rope_type!r} changes its angles with the length of the sequence: no table can hold them")
        if rope_type == "default":
            width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            # As transformers: in this order of operations, so that every bit is its own.
            steps = torch.arange(0, width, 2, dtype=torch.float, device=device)
            inv_freq = 1.0 / (parameters["rope_theta"] ** (steps / width))
        else:
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            require_choice("rope_type", rope_type, ("default", *ROPE_INIT_FUNCTIONS))
            inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, device)
        rows = config.max_position_embeddings if max_positions is None else max_positions
        return cls(inv_freq, rows, attention_scaling=scaling, dtype=dtype)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gather_cos_sin(self.cos_sin, positions)
