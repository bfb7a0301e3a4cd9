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
    model, with_bias = ModelNorm(), torch.nn.RMSNorm(8, eps=1e-2)
    with_bias.bias = torch.nn.Parameter(torch.randn(8))
    assert norm_parameters("q_norm", model) == (model.weight, None, 1e-6)
    weight, bias, eps = norm_parameters("q_norm", with_bias)
    assert weight is with_bias.weight
    assert bias is with_bias.bias
    assert eps == 1e-2


@pytest.mark.parametrize(
    ("norm", "message"),
    (
        (torch.nn.Identity(), r"q_norm must have a weight of one dimension \(got Identity\(\)\)"),
        (torch.nn.Linear(2, 2), r"q_norm must have a weight of one dimension \(got Linear"),
        (torch.nn.LayerNorm(8), r"q_norm must be an RMSNorm, which subtracts no mean \(got LayerNorm"),
        (torch.nn.RMSNorm(8), r"q_norm must have a float variance_epsilon or eps \(got RMSNorm"),
    ),
)
def test_what_is_no_norm_is_refused_by_name(norm, message):
    with pytest.raises(TypeError, match=message):
        norm_parameters("q_norm", norm)
