"""Which rows of logits exist at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

# Logits of a chunk: at most as large as the weight, within these bounds, and where gradients are made four times as large: of every chunk
# but the last forward makes the gradients' products, and each adds to the weight's gradient.
_MOST_BYTES = 1 << 30
_LEAST_BYTES = 1 << 20
_WITH_GRADIENT = 4
# Chunks of tokens start at such rows, so that every load of a chunk is aligned.
_ROWS = 16
# One of so many tokens may be taken from the last chunk to save memory: forward then makes at most an eighth of a product more.
_SPLIT = 16


class Chunks(NamedTuple):
    """Groups of rows that are split into chunks each by itself; all groups but the last are of one size.

    A group that is more than one chunk starts with what its whole chunks leave over: the last chunk of all, which backward does, is large.

    Attributes:
        total: rows in all.
        group: rows of a group: at sequence level those of the sequences whose log-probabilities are needed together, else all.
        rows: of a chunk at most.
    """

    total: int
    group: int
    rows: int

    @property
    def last(self) -> int:
        """Rows of the last chunk."""
        if self.rows == self.total:
            return self.total
        after_first = self._last_group - self._first(self._last_group)
        return (after_first - 1) % self.rows + 1 if after_first else self._last_group

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

    def _first(self, group: int) -> int:
        return min(group, _aligned((group - 1) % self.rows + 1))

    def groups(self) -> Iterator[list[slice]]:
        """The chunks of each group."""
        for start in range(0, self.total, max(self.group, 1)):
            stop = min(start + self.group, self.total)
            second = start + self._first(stop - start)
            bounds = (start, *range(second, stop, self.rows), stop)
            yield [slice(*pair) for pair in zip(bounds, bounds[1:])]


def chunks_of(
    batch: int, length: int, weight: torch.Tensor, most: int, by_sequence: bool, needed: Sequence[bool], splits: bool = False
) -> Chunks:
    """Even chunks, none above `most` rows (0: by the bytes that their logits take); of whole sequences if one fits and `by_sequence`.

    `needed` are the gradients of hidden, weight and bias. With `splits`, `most` 0 and a gradient of the weight a single chunk gives a few
    rows to one before it where that lowers the peak to a third of eager's.
    """
    total = batch * length
    vocabulary, width = weight.shape
    split = 0
    if not most:
        row_bytes = vocabulary * weight.element_size()
        most_bytes = min(max(width * row_bytes, _LEAST_BYTES), _MOST_BYTES)
        most = (_WITH_GRADIENT if any(needed) else 1) * most_bytes // row_bytes
        if splits and needed[1] and not by_sequence and weight.element_size() == 2:
            split = _split(total, vocabulary, width)
    most = max(most // _ROWS * _ROWS, _ROWS)
    if total <= most:
        return Chunks(total, total, total - split)
    if not by_sequence:
        return Chunks(total, total, _even(total, most))
    if length > most:
        return Chunks(total, length, _even(length, most))
    chunks = -(-batch // (most // length))
    rows = -(-batch // chunks) * length
    return Chunks(total, rows, rows)


def _split(total: int, vocabulary: int, width: int) -> int:
    """Rows of a first chunk that make the peak a third of eager's, which is six times the logits in two bytes; 0 where none or too many.

    In elements: last * vocabulary + vocabulary * width + (total + first) * width <= 2 * total * vocabulary.
    """
    if vocabulary <= width:
        return 0
    rows = _aligned(-(-width * vocabulary // (vocabulary - width)) - total)
    return rows if 0 < rows <= total // _SPLIT else 0


def _even(rows: int, most: int) -> int:
    chunks = -(-rows // most)
    return _aligned(-(-rows // chunks))


def _aligned(rows: int) -> int:
    return -(-rows // _ROWS) * _ROWS
