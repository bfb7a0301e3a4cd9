"""Which rows of logits exist at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

# Logits of a chunk: at most as large as the weight, within these bounds, and where gradients are made four times as large: of every chunk
# but the last forward makes the gradients' products, and each adds to the weight's gradient.
_MOST_BYTES = 1 << 30
_LEAST_BYTES = 1 << 20
_WITH_GRADIENT = 4
# Chunks of tokens start at such rows, so that every load of a chunk is aligned.
_ROWS = 16


class Chunks(NamedTuple):
    """Groups of rows that are split into chunks each by itself; every size of a group or chunk but the last is the same.

    Attributes:
        total: rows in all.
        group: rows of a group: at sequence level those of the sequences whose log-probabilities are needed together, else all.
        rows: of a chunk.
    """

    total: int
    group: int
    rows: int

    @property
    def last(self) -> int:
        """Rows of the last chunk."""
        return self.total if self.rows == self.total else (self._last_group - 1) % self.rows + 1

    @property
    def before(self) -> int:
        """How many chunks come before the last."""
        if self.rows == self.total:
            return 0
        whole_groups = (self.total - 1) // self.group
        return whole_groups * -(-self.group // self.rows) + (self._last_group - 1) // self.rows

    @property
    def _last_group(self) -> int:
        return (self.total - 1) % self.group + 1

    def groups(self) -> Iterator[list[slice]]:
        """The chunks of each group."""
        for start in range(0, self.total, max(self.group, 1)):
            stop = min(start + self.group, self.total)
            yield [slice(first, min(first + self.rows, stop)) for first in range(start, stop, self.rows)]


def chunks_of(batch: int, length: int, weight: torch.Tensor, most: int, by_sequence: bool, needs_gradient: bool) -> Chunks:
    """Even chunks, none above `most` rows (0: by the bytes that their logits take); of whole sequences if one fits and `by_sequence`."""
    total = batch * length
    if not most:
        vocabulary, width = weight.shape
        row_bytes = vocabulary * weight.element_size()
        most_bytes = min(max(width * row_bytes, _LEAST_BYTES), _MOST_BYTES)
        most = (_WITH_GRADIENT if needs_gradient else 1) * most_bytes // row_bytes
    most = max(most // _ROWS * _ROWS, _ROWS)
    if total <= most:
        return Chunks(total, total, total)
    if not by_sequence:
        return Chunks(total, total, _even(total, most))
    if length > most:
        return Chunks(total, length, _even(length, most))
    chunks = -(-batch // (most // length))
    rows = -(-batch // chunks) * length
    return Chunks(total, rows, rows)


def _even(rows: int, most: int) -> int:
    chunks = -(-rows // most)
    return -(-rows // chunks // _ROWS) * _ROWS
