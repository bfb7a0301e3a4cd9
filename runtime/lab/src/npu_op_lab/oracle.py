"""When a result is right: judged by its error against fp64, measured by the error that PyTorch itself makes.

With gold = the formula in fp64 on the same (rounded) inputs, base = the same formula run by PyTorch in the low precision,
and k = the result under test, k passes when, for the norm max|.| and again for the root mean square,

    norm(k - gold) <= 2 * norm(base - gold) + (eps + a) * norm(gold)

and when NaN and infinities stand where gold, rounded to the result's dtype, has them.

*eps* is one rounding of the largest gold value: `torch.finfo(dtype).eps` of the result's dtype, twice the error of
rounding to nearest. It is what a single value, or a base that happens to be exact, leaves to a kernel. In the RMS it scales the
RMS of gold, not its maximum: rounding every element once costs no more than eps / 2 * rms(gold), and a tensor whose
largest element stands out (a softmax gradient) would otherwise have its other elements unchecked.

*a* is for sums of many terms, as a parameter's gradient over rows: eps32 / 2 * sqrt(terms), zero for one term. Adding n terms of random
sign one after the other in fp32 rounds partial sums of size sqrt(i), each by eps32 / sqrt(12) * sqrt(i) / 2 to sqrt(i): together
about 0.2 * eps32 * n beside a sum of size sqrt(n), hence 0.2 * eps32 * sqrt(n), and 0.5 with room for the spread.
PyTorch adds in blocks and errs less than an honest running sum, so twice its error is not enough there. The allowance is
that of fp32 whatever the result's dtype: a sum kept in fp16 or bf16, whose error grows alike from an eps 2^13 or 2^16 times larger, fails.

A gold that is all zero leaves nothing beyond twice the base error: where eager gives exactly zero, so must the kernel.
A tensor without elements passes on its shape and dtype. Integer and boolean results must equal gold's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_EPS32 = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Verdict:
    """What the oracle says of one tensor; errors are absolute, against fp64. `reason` is empty when it passed."""

    name: str
    passed: bool
    max_error: float = 0.0
    rms_error: float = 0.0
    max_allowed: float = 0.0
    rms_allowed: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason or 'passed'}"


@dataclass(frozen=True)
class Errors:
    """Maximum and root mean square of a difference."""

    max: float
    rms: float


def check(name: str, actual: torch.Tensor | None, base: torch.Tensor | None, gold: torch.Tensor | None, terms: int = 1) -> Verdict:
    """Judges one result.

    Args:
        name: of the tensor, for the verdict.
        actual: the result under test; None is right only where gold is None (no gradient).
        base: the formula by PyTorch in the low precision; gives the expected shape and dtype.
        gold: the formula in fp64; its device is the one that compares.
        terms: how many terms an element is the sum of, for an accumulated result.
    """
    if gold is None or base is None:
        return Verdict(name, actual is None, reason="" if actual is None else "a tensor came where the reference gives None")
    if actual is None:
        return Verdict(name, False, reason="None came where the reference gives a tensor")
    if actual.shape != base.shape:
        return Verdict(name, False, reason=f"shape {tuple(actual.shape)} came, the reference gives {tuple(base.shape)}")
    if actual.dtype != base.dtype:
        return Verdict(name, False, reason=f"dtype {actual.dtype} came, the reference gives {base.dtype}")
    if not (actual.is_floating_point() or actual.is_complex()):
        wrong = int((actual.cpu() != gold.cpu()).sum())
        return Verdict(name, wrong == 0, wrong, reason=f"{wrong} of {gold.numel()} elements differ" if wrong else "")
    exact = as_fp64(gold, gold.device)
    return _check_values(name, as_fp64(actual, gold.device), as_fp64(base, gold.device), exact, base.dtype, terms)


def _check_values(name: str, actual: torch.Tensor, base: torch.Tensor, gold: torch.Tensor, dtype: torch.dtype, terms: int) -> Verdict:
    expected = as_fp64(gold.to(dtype.to_real()), gold.device)  # overflows to infinity where the dtype does
    for kind, found, wanted in (
        ("NaN", actual.isnan(), expected.isnan()),
        ("+inf", actual == math.inf, expected == math.inf),
        ("-inf", actual == -math.inf, expected == -math.inf),
    ):
        if not torch.equal(found, wanted):
            reason = f"{kind} at {int(found.sum())} elements, gold at {int(wanted.sum())}, first difference at {_first(found != wanted)}"
            return Verdict(name, False, math.inf, math.inf, reason=reason)
    finite = expected.isfinite()
    error = errors_of(actual - gold, finite)
    # Where eager itself overflows there is no error to measure: those elements allow nothing.
    eager = errors_of(base - gold, finite & base.isfinite())
    size = errors_of(gold, finite)
    floor = torch.finfo(dtype).eps + (_EPS32 / 2 * math.sqrt(terms) if terms > 1 else 0.0)
    allowed = Errors(2 * eager.max + floor * size.max, 2 * eager.rms + floor * size.rms)
    reasons = [
        f"{norm} error {got:.3g}, allowed {limit:.3g} (eager {by_eager:.3g})"
        for norm, got, limit, by_eager in (("max", error.max, allowed.max, eager.max), ("RMS", error.rms, allowed.rms, eager.rms))
        if got > limit
    ]
    if reasons:
        worst = ((actual - gold).abs() * finite).nan_to_num(0.0)
        reasons.append(f"worst at {_first(worst == worst.max())}")
    return Verdict(name, not reasons, error.max, error.rms, allowed.max, allowed.rms, "; ".join(reasons))


def as_fp64(tensor: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """On `device` in fp64; a complex tensor as pairs (..., 2)."""
    tensor = tensor.detach().to(device)
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).to(torch.float64)


def errors_of(difference: torch.Tensor, where: torch.Tensor) -> Errors:
    """The norms of `difference` over the elements that `where` selects; zero if there are none."""
    kept = difference if bool(where.all()) else difference[where]
    if kept.numel() == 0:
        return Errors(0.0, 0.0)
    return Errors(float(kept.abs().max()), float(kept.square().mean().sqrt()))


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[0].tolist())
