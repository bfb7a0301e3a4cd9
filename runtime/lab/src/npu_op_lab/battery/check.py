"""What a check of the battery is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from npu_op_runtime.spec import Case, OperatorSpec

from ..execution import Mode
from ..oracle import Verdict

Run = Callable[[OperatorSpec, Case, Mode], None]


@dataclass(frozen=True)
class Check:
    """One property of an operator.

    Attributes:
        name: of the test, without "test_".
        run: raises AssertionError when the property does not hold for a case in a mode.
        cases: the cases of a spec to try it on.
        modes: the kinds of mode (see `Mode.kind`) in which it means something.
    """

    name: str
    run: Run
    cases: Callable[[OperatorSpec], Sequence[Case]]
    modes: frozenset[str]

    def parameters(self, spec: OperatorSpec, modes: Iterable[Mode]) -> list[tuple[Case, Mode]]:
        """What to run it on, of the modes that are available."""
        return [(case, mode) for mode in modes if {mode.kind, mode.name} & self.modes for case in self.cases(spec)]


CHECKS: list[Check] = []


def check(cases: Callable[[OperatorSpec], Sequence[Case]], *modes: str) -> Callable[[Run], Run]:
    """Registers a function `check_<name>(spec, case, mode)`; `modes` are kinds, or names, of modes."""

    def register(run: Run) -> Run:
        CHECKS.append(Check(run.__name__.removeprefix("check_"), run, cases, frozenset(modes)))
        return run

    return register


def require(verdicts: Iterable[Verdict]) -> None:
    """Raises AssertionError with every verdict that is not a pass."""
    failed = [str(verdict) for verdict in verdicts if not verdict.passed]
    assert not failed, "\n".join(failed)
