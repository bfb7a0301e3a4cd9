"""Hypothesis strategies for the shapes of a spec."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies
from hypothesis.strategies import SearchStrategy

from npu_op_runtime.spec import DTYPES, Case, OperatorSpec

from ..passes import with_dims
from .selection import representatives

MAX_ROWS = 70


def neighbours(spec: OperatorSpec) -> SearchStrategy[Case]:
    """Cases like the spec's representatives with other rows (0 to 70), free dims and dtype."""
    bases = [case for case in representatives(spec) if case.layout == "contiguous"]
    return strategies.builds(
        lambda base, rows, dims, dtype: replace(with_dims(base, **{spec.rows: rows}, **dims), dtype=dtype),
        strategies.sampled_from(bases),
        strategies.integers(0, MAX_ROWS),
        strategies.fixed_dictionaries({name: strategies.sampled_from(sizes) for name, sizes in spec.free_dims.items()}),
        strategies.sampled_from(sorted(DTYPES)),
    )
