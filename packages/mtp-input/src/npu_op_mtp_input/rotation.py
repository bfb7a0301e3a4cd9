"""Un-rotates the hidden states of a rotated (QuaRot) checkpoint, in either of the two conventions that are in use."""

from __future__ import annotations

import torch

from npu_op_runtime.checks import require_choice, require_same_device, require_tensor
from npu_op_runtime.dtypes import require_dtype

# By name what multiplies a hidden state h: the matrix R as it is stored, or its transpose.
CONVENTIONS = ("h @ R", "h @ R.T")


def require_rotation(rotation: torch.Tensor | None, convention: str | None, width: int, like: torch.Tensor, name: str) -> None:
    """A (width, width) matrix in the dtype and on the device of `like`, called `name`, and a convention; or neither.

    Raises:
        TypeError, ValueError: naming the argument, what came and what is allowed.
    """
    if rotation is None:
        if convention is not None:
            raise ValueError(f"convention must be None without a rotation (got {convention!r})")
        return
    # No default: the wrong one gives states of the right size and a draft that is hardly ever accepted.
    require_choice("convention", convention, CONVENTIONS)
    require_tensor("rotation", rotation)
    require_dtype("rotation", rotation, (like.dtype,))
    if tuple(rotation.shape) != (width, width):
        raise ValueError(f"rotation must have shape {(width, width)} (got {tuple(rotation.shape)})")
    require_same_device(**{name: like}, rotation=rotation)


def unrotated(hidden: torch.Tensor, rotation: torch.Tensor | None, convention: str | None) -> torch.Tensor:
    """hidden @ R or hidden @ R.T; hidden itself without a rotation."""
    if rotation is None:
        return hidden
    return hidden @ (rotation if convention == "h @ R" else rotation.T)


def fold_rotation(weight: torch.Tensor, rotation: torch.Tensor, *, convention: str) -> torch.Tensor:
    """The weight of a linear layer that takes rotated states and gives what `weight` gives for un-rotated ones.

    linear(h @ R, W) = linear(h, W @ R.T), and with the other convention linear(h @ R.T, W) = linear(h, W @ R).

    Args:
        weight: (out_features, n * width): the layer takes n states of `width` side by side, each of which is rotated.
        rotation: (width, width).
        convention: "h @ R" or "h @ R.T", whichever un-rotates a state h.

    Returns:
        In the shape and dtype of weight; multiplied in fp64 and rounded once.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
    """
    for argument, tensor in (("weight", weight), ("rotation", rotation)):
        require_tensor(argument, tensor)
        require_dtype(argument, tensor)
        if tensor.dim() != 2:
            raise ValueError(f"{argument} must have two dimensions (got shape {tuple(tensor.shape)})")
    width = rotation.shape[0]
    if width == 0 or rotation.shape[1] != width:
        raise ValueError(f"rotation must be square (got shape {tuple(rotation.shape)})")
    if weight.shape[1] % width:
        raise ValueError(f"weight must have a multiple of {width} columns, the width of rotation (got {weight.shape[1]})")
    require_choice("convention", convention, CONVENTIONS)
    require_same_device(weight=weight, rotation=rotation)
    # State by state: a block-diagonal matrix for all n of them would be n times as wide in both directions.
    states = weight.to(torch.float64).unflatten(1, (-1, width))
    matrix = rotation.to(torch.float64)
    return (states @ (matrix.T if convention == "h @ R" else matrix)).flatten(1).to(weight.dtype)
