"""How many rows of logits exist at once, and how the weight's gradient is added up over the chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Logits of a chunk: as large as the weight, so that the traffic of its gradient stays a small part of the products', within these bounds.
_MOST_BYTES = 1 << 30
_LEAST_BYTES = 1 << 20
# Chunks start at such rows, so that every load of a chunk is aligned.
_ROWS = 16


def rows_of_chunk(rows: int, weight: torch.Tensor, most: int) -> int:
    """Rows of a chunk for `rows` rows in all: even chunks, none above `most` (0: by the bytes that their logits take)."""
    vocabulary, width = weight.shape
    row_bytes = vocabulary * weight.element_size()
    if not most:
        most = min(max(width * row_bytes, _LEAST_BYTES), _MOST_BYTES) // row_bytes
    most = max(most // _ROWS * _ROWS, _ROWS)
    chunks = -(-rows // most)
    return min(-(-rows // max(chunks, 1) // _ROWS) * _ROWS, rows) if chunks > 1 else rows


def split(start: int, stop: int, rows: int) -> Iterator[slice]:
    for first in range(start, stop, rows):
        yield slice(first, min(first + rows, stop))


class WeightGradient:
    """Adds up `logits_gradient.T @ hidden` of the chunks into `out`.

    In fp32 for a weight of half precision: each chunk's product, rounded to the weight's dtype by the matrix unit, is added to a
    buffer of its own; `out` serves as the place of the products, and takes the last sum. One chunk needs no buffer.
    """

    def __init__(self, out: torch.Tensor, accumulate_float32: bool) -> None:
        self._out = out
        self._buffered = accumulate_float32 and out.dtype != torch.float32
        self._sum: torch.Tensor | None = None
        self._empty = True

    def add(self, logits_gradient: torch.Tensor, hidden: torch.Tensor, *, last: bool) -> None:
        if not self._empty and not self._buffered:
            self._out.addmm_(logits_gradient.t(), hidden)
            return
        torch.mm(logits_gradient.t(), hidden, out=self._out)
        self._empty = False
        if self._sum is None:
            self._sum = self._out.float() if self._buffered and not last else None
        elif last:
            torch.add(self._sum, self._out, out=self._out)
        else:
            self._sum += self._out

    def finish(self) -> None:
        """After the last chunk: no chunk, no gradient."""
        self._sum = None
        if self._empty:
            self._out.zero_()
