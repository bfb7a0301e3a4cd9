"""What a backend says of one provider at one point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from npu_op_runtime.spec import Traffic

from .points import Point

# How a provider was verified that raised before anyone could judge it.
RAISED = "not at all: it raised"
UNITS = {"speed": "ms", "device_time": "ms", "host_time": "us", "memory": "MB"}


@dataclass(frozen=True)
class Place:
    """Where figures come from.

    Attributes:
        device: the GPU's or NPU's name, or the SoC that is modelled.
        basis: "measured" or "modelled".
        soc: name in the SoC table, None on a GPU.
        bandwidth: bytes per second of the roof; bandwidth_source: where that figure comes from.
    """

    device: str
    basis: str
    soc: str | None
    bandwidth: float
    bandwidth_source: str

    @property
    def label(self) -> str:
        return f"{self.basis} ({self.device}, roof {self.bandwidth / 1e9:.0f} GB/s: {self.bandwidth_source})"


@dataclass(frozen=True)
class Verification:
    """The oracle's word on a provider: `how` names where and at which size, `worst` is the largest error over the allowed one."""

    passed: bool
    how: str
    worst: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Measurement:
    """One figure in one mode: median and the 20th and 80th percentile, in `UNITS[metric]`.

    `bound` and `own_roof_share` are the emulator's: the unit that bounds the longest kernel, and the share of the kernels' time
    that the busiest of HBM and vector unit needs. `kernels` describes the kernels compiled, `launches` counts all that a call launches.
    """

    mode: str
    metric: str
    median: float
    low: float
    high: float
    samples: int
    bound: str | None = None
    own_roof_share: float | None = None
    kernels: tuple[dict[str, Any], ...] = ()
    launches: int | None = None


class Backend(Protocol):
    """One kind of machine."""

    place: Place

    def resolve(self, point: Point, provider: str) -> Callable[..., Any]:
        """The provider's function here; raises Absent, ImportError or NotImplementedError where there is none."""
        ...

    def verify(self, point: Point, provider: str, function: Callable[..., Any]) -> Verification:
        """Run it, forward and backward, and ask the oracle."""
        ...

    def measure(self, point: Point, provider: str, function: Callable[..., Any], modes: Sequence[str]) -> list[Measurement]:
        """Every metric but the host's time in every mode; called after a verdict in its favour."""
        ...

    def host_times(self, point: Point, functions: Mapping[str, Callable[..., Any]], modes: Sequence[str]) -> dict[str, list[Measurement]]:
        """The host's time of every provider that was measured at the point, by its name, in every mode; {} where there is no host."""
        ...


def spread(mode: str, metric: str, values: Sequence[float]) -> Measurement:
    """Median, 20th and 80th percentile of the values."""
    low, median, high = (float(torch.tensor(values, dtype=torch.float64).quantile(q)) for q in (0.2, 0.5, 0.8))
    return Measurement(mode, metric, median, low, high, len(values))


def minimum_bytes(traffic: Traffic, mode: str) -> int:
    """GM bytes that a mode must move at least."""
    no_grad = traffic.forward if traffic.no_grad_forward is None else traffic.no_grad_forward
    return {"forward": traffic.forward, "no-grad-forward": no_grad, "backward": traffic.backward}.get(
        mode, traffic.forward + traffic.backward
    )
