"""Results in the place of arguments, for the implementations that compute them elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def overwrite(tensors: Sequence[torch.Tensor | None], results: Sequence[torch.Tensor | None]) -> None:
    """Copies each result into the tensor of its position, where there are both."""
    for tensor, result in zip(tensors, results):
        if tensor is not None and result is not None:
            tensor.copy_(result)
