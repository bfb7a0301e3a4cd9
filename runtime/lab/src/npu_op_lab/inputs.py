"""Tensors of a case: deterministic per seed, or unwritten memory where only shapes matter."""

from __future__ import annotations

import torch


class Inputs:
    """Makes the tensors of one case, in the order in which its spec asks for them.

    Values are drawn on the CPU and then moved, so that a seed gives the same numbers on every device.

    Args:
        device: where the tensors go.
        seed: of the generator.
        empty: allocate without writing, for shapes that are only compiled: the pages are never touched.
    """

    def __init__(self, device: str = "cpu", seed: int = 0, empty: bool = False) -> None:
        self._device, self._empty = device, empty
        self._generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int, dtype: torch.dtype, scale: float = 1.0, offset: float = 0.0) -> torch.Tensor:
        """offset + scale * N(0, 1), drawn and shifted in fp32 (fp64 for fp64), rounded once to `dtype`."""
        if self._empty:
            return torch.empty(shape, dtype=dtype, device=self._device)
        drawn = torch.randn(shape, generator=self._generator, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        return (drawn * scale + offset).to(device=self._device, dtype=dtype)

    def randint(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers of [low, high)."""
        if self._empty:
            return torch.empty(shape, dtype=dtype, device=self._device)
        return torch.randint(low, high, shape, generator=self._generator, dtype=dtype).to(self._device)


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a slice of a wider tensor: last dimension contiguous, odd offset and row stride, NaN between the rows.

    A tensor of fewer than two dimensions, and one without elements, has no rows to part and is returned as it is.
    """
    if tensor.dim() < 2 or tensor.numel() == 0:
        return tensor
    width = tensor.shape[-1]
    wide = tensor.new_empty((*tensor.shape[:-1], width + 5)).fill_(poison(tensor.dtype))
    view = wide[..., 3 : 3 + width]
    return view.copy_(tensor)


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values of a vector as every third of a longer one, with NaN between; any other tensor as it is."""
    if tensor.dim() != 1 or tensor.numel() == 0:
        return tensor
    longer = tensor.new_empty(tensor.numel(), 3).fill_(poison(tensor.dtype))
    return longer[:, 1].copy_(tensor)


def poison(dtype: torch.dtype) -> float | int | bool:
    """What memory that nothing has written holds in a test: NaN, or the most negative integer."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).min
