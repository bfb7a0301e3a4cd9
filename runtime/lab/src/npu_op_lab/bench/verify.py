"""The oracle's verdicts on a call, in one word."""

from __future__ import annotations

from collections.abc import Iterable

from ..oracle import Verdict
from .measurement import Verification


def verification(verdicts: Iterable[Verdict], how: str) -> Verification:
    """Passed when every tensor passed; otherwise the reason is that of the first that did not."""
    verdicts = list(verdicts)
    failed = [str(verdict) for verdict in verdicts if not verdict.passed]
    shares = [verdict.max_error / verdict.max_allowed for verdict in verdicts if verdict.max_allowed]
    return Verification(not failed, how, max(shares, default=0.0), failed[0] if failed else "")
