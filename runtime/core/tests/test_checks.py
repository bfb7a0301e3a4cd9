from __future__ import annotations

import pytest
import torch

from npu_op_runtime.checks import (
    require_choice,
    require_number,
    require_same_device,
    require_separate,
    require_shape,
    require_tensor,
    require_width,
)
from npu_op_runtime.dtypes import compute_dtype, require_dtype


def test_messages_name_argument_value_and_allowed():
    with pytest.raises(TypeError, match=r"x must be a torch.Tensor \(got list\)"):
        require_tensor("x", [1])
    with pytest.raises(TypeError, match=r"x must have dtype float16 or bfloat16 or float32 \(got float64\)"):
        require_dtype("x", torch.empty(1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"weight must have shape \(3,\) \(got \(2,\)\)"):
        require_shape("weight", torch.empty(2), (3,))
    with pytest.raises(ValueError, match=r"weight must be on cpu like x \(got meta\)"):
        require_same_device(x=torch.empty(1), bias=None, weight=torch.empty(1, device="meta"))
    with pytest.raises(ValueError, match=r"casting must be one of 'a', 'b' \(got 'c'\)"):
        require_choice("casting", "c", ("a", "b"))
    for equal in (1.0, torch.tensor(1)):
        with pytest.raises(ValueError, match=r"unsqueeze_dim must be one of 1, 2 \(got .*1"):
            require_choice("unsqueeze_dim", equal, (1, 2))
    for wrong in (None, "1e-6", True):
        with pytest.raises(TypeError, match=rf"eps must be a number \(got {wrong!r}\)"):
            require_number("eps", wrong)
    require_number("eps", 1)
    with pytest.raises(TypeError, match=r"q_lora_rank must be an int \(got 64.0\)"):
        require_width("q_lora_rank", 64.0)
    with pytest.raises(ValueError, match=r"q_lora_rank must be at least 1 \(got 0\)"):
        require_width("q_lora_rank", 0)
    require_width("qk_rope_dim", 0, least=0)


def test_compute_dtype_keeps_the_oracle_in_fp64():
    assert compute_dtype(torch.bfloat16) == torch.float32
    assert compute_dtype(torch.float64) == torch.float64


def test_shared_memory_is_named():
    x = torch.empty(4)
    require_separate(gate=x, up=torch.empty(4))
    require_separate(gate=torch.empty(0), up=torch.empty(0))
    with pytest.raises(ValueError, match="up must not share memory with gate, both are overwritten"):
        require_separate(gate=x[:2], up=x[1:])
