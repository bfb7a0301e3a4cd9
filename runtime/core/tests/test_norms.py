from __future__ import annotations

import pytest
import torch

from npu_op_runtime.norms import norm_parameters


class ModelNorm(torch.nn.Module):
    """As in transformers: no bias attribute, the eps under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))
        self.variance_epsilon = 1e-6


def test_weight_bias_and_eps_under_their_names():
    model, layer = ModelNorm(), torch.nn.LayerNorm(8, eps=1e-2)
    assert norm_parameters("q_norm", model) == (model.weight, None, 1e-6)
    weight, bias, eps = norm_parameters("q_norm", layer)
    assert weight is layer.weight
    assert bias is layer.bias
    assert eps == 1e-2


@pytest.mark.parametrize(
    ("norm", "message"),
    (
        (torch.nn.Identity(), r"q_norm must have a weight of one dimension \(got Identity\(\)\)"),
        (torch.nn.Linear(2, 2), r"q_norm must have a weight of one dimension \(got Linear"),
        (torch.nn.RMSNorm(8), r"q_norm must have a float variance_epsilon or eps \(got RMSNorm"),
    ),
)
def test_what_is_no_norm_is_refused_by_name(norm, message):
    with pytest.raises(TypeError, match=message):
        norm_parameters("q_norm", norm)
