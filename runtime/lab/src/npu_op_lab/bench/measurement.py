"""What a backend says of one provider at one point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
        """Every metric in every mode; called after a verdict in its favour."""
        ...


def minimum_bytes(traffic: Traffic, mode: str) -> int:
    """GM bytes that a mode must move at least."""
    no_grad = traffic.forward if traffic.no_grad_forward is None else traffic.no_grad_forward
    return {"forward": traffic.forward, "no-grad-forward": no_grad, "backward": traffic.backward}.get(
        mode, traffic.forward + traffic.backward
    )
