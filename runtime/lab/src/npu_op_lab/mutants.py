"""Right results turned wrong in the ways in which kernels go wrong; the oracle must reject each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch


def zeros(right: torch.Tensor) -> torch.Tensor:
    """Nothing was written."""
    return torch.zeros_like(right)


def dropped_tail(right: torch.Tensor) -> torch.Tensor:
    """The tail was not written: the last eighth, eight elements at least."""
    wrong = right.clone(memory_format=torch.contiguous_format)
    wrong.view(-1)[-max(8, right.numel() // 8) :] = 0
    return wrong


def row_shifted(right: torch.Tensor) -> torch.Tensor:
    """Every row holds the one before it; in a vector, every element."""
    return right.roll(1, 0) if right.dim() else right


def transposed(right: torch.Tensor) -> torch.Tensor:
    """The last two dimensions stored in the other order; a vector as the most nearly square matrix."""
    if right.dim() < 2:
        matrix = right.reshape(_divisor(right.numel()), -1)
        return matrix.T.reshape(right.shape)
    return right.transpose(-1, -2).reshape(right.shape)


def scaled(right: torch.Tensor) -> torch.Tensor:
    """Every element is off by the same eight roundings."""
    return (right.double() * (1 + 8 * torch.finfo(right.dtype).eps)).to(right.dtype)


MUTANTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    mutant.__name__: mutant for mutant in (zeros, dropped_tail, row_shifted, transposed, scaled)
}


def low_precision_sum(terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum over the rows of `terms` by a running sum that is kept in `dtype` instead of fp32."""
    total = torch.zeros(terms.shape[1:], dtype=dtype, device=terms.device)
    for row in terms.to(dtype):
        total += row
    return total


def running_sum(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the rows of fp32 `terms` in order, as an honest kernel may add them: no mutant."""
    return low_precision_sum(terms, torch.float32)


def last_program_wins(terms: torch.Tensor, programs: int) -> torch.Tensor:
    """The sum over the rows of `terms` of the last of `programs` chunks only: each program stored over the others' result."""
    return terms.tensor_split(programs)[-1].sum(0)


def _divisor(number: int) -> int:
    return max(size for size in range(1, int(number**0.5) + 1) if number % size == 0) if number else 1
