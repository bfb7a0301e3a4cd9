"""Runs a benchmark: verifies and measures every provider at every point, and makes the records."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from npu_op_runtime.stack import version_of

from .environment import environment, git_state
from .host_time import ProviderRaised
from .measurement import RAISED, UNITS, Backend, Measurement, Verification, minimum_bytes
from .points import Point
from .providers import Absent
from .records import Record
from .sources import kernels_hash, model_hash, package_of


@dataclass
class Outcome:
    """What a run gives: records, and a sentence for every provider that has no figures somewhere, with the reason.

    `failed` holds what the oracle refused, and whatever ours raised; `notes` the peers that are absent or raised.
    """

    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass
class _Sweep:
    """One provider at the points of one kernel and model, so far."""

    points: list[Point] = field(default_factory=list)
    verified: list[Verification] = field(default_factory=list)
    measured: list[list[Measurement]] = field(default_factory=list)


def run(
    backend: Backend,
    points: Sequence[Point],
    providers: Sequence[str],
    modes: Sequence[str],
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Measure every provider at every point.

    A peer that is absent, or raises at a point, is noted and left out; the rest goes on. One whose results the oracle refuses at a
    point gets no figure for that sweep, and is listed in `failed`. Ours is never left out: where it raises, whatever it raises, that is
    listed in `failed`, and beside the figures of the other points stands a record without figures that holds the reason.
    """
    outcome = Outcome()
    raised: dict[tuple[str, str], tuple[Point, Verification]] = {}
    sweeps: dict[tuple[str, str, str], _Sweep] = defaultdict(_Sweep)
    for point in points:
        timed: dict[str, Callable[..., Any]] = {}
        for provider in providers:
            progress(f"{point.case.name} {provider}")
            try:
                function = backend.resolve(point, provider)
                verified = backend.verify(point, provider, function)
                measured = backend.measure(point, provider, function, _modes(point, modes)) if verified.passed else []
            except Exception as error:  # another project's code, the compiler, the device: whatever it raises, the rest goes on
                reason = f"at {point.case.name}: {type(error).__name__}: {_first_line(error)}"
                if provider == "ours":
                    raised.setdefault((point.kernel, point.model), (point, Verification(False, RAISED, reason=reason)))
                    _note(outcome.failed, f"{point.kernel} by {provider} {reason}")
                elif isinstance(error, (Absent, ImportError, NotImplementedError)):  # not here, or not for this operator
                    _note(outcome.notes, f"{point.kernel} by {provider}: {_first_line(error)}")
                else:
                    _note(outcome.notes, f"{point.kernel} by {provider} {reason}")
                continue
            if not verified.passed:
                _note(outcome.failed, f"{point.kernel} by {provider} at {point.case.name}: the oracle refuses it: {verified.reason}")
            sweep = sweeps[point.kernel, point.model, provider]
            sweep.points.append(point)
            sweep.verified.append(verified)
            sweep.measured.append(measured)
            if verified.passed:
                timed[provider] = function
        for provider, found in _host_times(backend, point, timed, _modes(point, modes), outcome.notes).items():
            sweeps[point.kernel, point.model, provider].measured[-1].extend(found)
    for (_, _, provider), sweep in sweeps.items():
        outcome.records += _records(backend, provider, sweep, modes)
    for point, verified in raised.values():
        outcome.records += _without_figures(backend, "ours", _Sweep([point]), modes, verified)
    return outcome


def _host_times(
    backend: Backend, point: Point, functions: dict[str, Callable[..., Any]], modes: Sequence[str], notes: list[str]
) -> dict[str, list[Measurement]]:
    """Of those that do not raise there."""
    try:
        return backend.host_times(point, functions, modes)
    except ProviderRaised as raised:
        _note(notes, f"{point.kernel} by {raised.provider}: no time of the host at {point.case.name}: {_first_line(raised)}")
        others = {name: function for name, function in functions.items() if name != raised.provider}
        return _host_times(backend, point, others, modes, notes)


def _modes(point: Point, modes: Sequence[str]) -> list[str]:
    """The modes that the case has: without gradients there is one."""
    differentiable = point.spec.differentiable and "gradient-free" not in point.case.tags
    return [mode for mode in modes if mode == "no-grad-forward" or differentiable]


def _note(notes: list[str], note: str) -> None:
    if note not in notes:
        notes.append(note)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def _records(backend: Backend, provider: str, sweep: _Sweep, modes: Sequence[str]) -> list[Record]:
    """A record for each mode and metric; where the oracle refused a point, one without figures."""
    refused = next((verified for verified in sweep.verified if not verified.passed), None)
    if refused:
        return _without_figures(backend, provider, sweep, modes, refused)
    worst = max(sweep.verified, key=lambda verified: verified.worst)
    everywhere = set.intersection(*({(one.mode, one.metric) for one in measured} for measured in sweep.measured))
    wanted = [(one.mode, one.metric) for one in sweep.measured[0] if (one.mode, one.metric) in everywhere]
    return [
        _record(backend, provider, sweep, mode, metric, [_pick(measured, mode, metric) for measured in sweep.measured], worst)
        for mode, metric in wanted
    ]


def _without_figures(backend: Backend, provider: str, sweep: _Sweep, modes: Sequence[str], verified: Verification) -> list[Record]:
    return [_record(backend, provider, sweep, mode, "speed", [], verified) for mode in _modes(sweep.points[0], modes)]


def _pick(measured: Sequence[Measurement], mode: str, metric: str) -> Measurement:
    return next(one for one in measured if (one.mode, one.metric) == (mode, metric))


def _record(
    backend: Backend, provider: str, sweep: _Sweep, mode: str, metric: str, figures: Sequence[Measurement], verified: Verification
) -> Record:
    place, point = backend.place, sweep.points[0]
    at = sweep.points if figures else []
    least = [minimum_bytes(point.spec.traffic(point.case), mode) for point in at]
    timed = metric in ("speed", "device_time")
    config = {"model": point.model, "dtype": point.case.dtype, **point.case.options}
    config |= {name: size for name, size in point.case.dims.items() if name != point.spec.rows}
    modelled, package = place.basis == "modelled", package_of(point.spec)
    return Record(
        kernel_name=point.kernel,
        kernel_provider=provider,
        kernel_operation_mode=mode,
        metric_name=metric,
        metric_unit=UNITS[metric],
        gpu_name=place.device,
        x_name=point.spec.rows,
        x_label="tokens",
        x_values=[point.tokens for point in at],
        y_values_50=[figure.median for figure in figures],
        y_values_20=[figure.low for figure in figures],
        y_values_80=[figure.high for figure in figures],
        timestamp=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S"),
        extra_benchmark_config_str=json.dumps(config),
        liger_version=version_of("liger-kernel"),
        operator=point.spec.name,
        model=point.model,
        dtype=point.case.dtype,
        basis=place.basis,
        soc=place.soc,
        roof_bytes_per_second=place.bandwidth,
        roof_source=place.bandwidth_source,
        bytes=least,
        roof_share=[size / place.bandwidth / (figure.median * 1e-3) for size, figure in zip(least, figures, strict=True)]
        if timed
        else None,
        own_roof_share=[figure.own_roof_share for figure in figures] if timed and modelled else None,
        bound=[figure.bound for figure in figures] if timed and modelled else None,
        verified=verified.passed,
        verified_by={"how": verified.how, "error_over_allowed": verified.worst, "reason": verified.reason},
        samples=figures[0].samples if figures else 0,
        launches=figures[-1].launches if figures else None,
        kernels=list(figures[-1].kernels) if figures and figures[-1].kernels else None,
        environment=environment(),
        git=git_state(package),
        kernels_hash=kernels_hash(package),
        model_hash=model_hash() if modelled else None,
    )
