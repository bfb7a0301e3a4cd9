"""The oracle's verdicts on a provider, in one word."""

from __future__ import annotations

from collections.abc import Iterable

from npu_op_runtime.spec import Case

from ..oracle import Verdict
from ..passes import with_dims
from .measurement import Verification
from .points import Point


def verification(verdicts: Iterable[Verdict], how: str) -> Verification:
    """Passed when every tensor passed; otherwise the reason is that of the first that did not."""
    verdicts = list(verdicts)
    failed = [str(verdict) for verdict in verdicts if not verdict.passed]
    shares = [verdict.max_error / verdict.max_allowed for verdict in verdicts if verdict.max_allowed]
    return Verification(not failed, how, max(shares, default=0.0), failed[0] if failed else "")


def reduced(point: Point, forward_bytes: int, most: int = 1 << 30) -> Case:
    """The spec's stand-in for the case at so many rows that its forward moves about `forward_bytes`: 3 to `most`, no more than it has."""
    rows = point.spec.rows
    row_bytes = point.spec.traffic(with_dims(point.case, **{rows: 1})).forward
    fewer = min(point.case.dims[rows], max(3, min(most, forward_bytes // max(row_bytes, 1))))
    return point.spec.judged(with_dims(point.case, **{rows: fewer}))
