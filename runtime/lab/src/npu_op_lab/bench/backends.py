"""Which backend a machine has: an NPU, else a CUDA GPU, else the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .device import Device
from .measured import Measured
from .measurement import Backend
from .modelled import Modelled

if TYPE_CHECKING:
    from ..emulator.costs import Ceiling


def backends_here(socs: Sequence[str] = (), ceiling: Ceiling = "measured") -> list[Backend]:
    """The device of this machine, measured; or, where there is none or `socs` are named, one model for each SoC.

    Raises:
        Absent: no device, and what modelling needs is not installed.
        ValueError: a SoC that cannot be modelled.
    """
    if not socs and torch.cuda.is_available():
        return [Measured(Device("cuda"))]
    if not socs and hasattr(torch, "npu") and torch.npu.is_available():
        return [Measured(Device("npu"))]
    return [Modelled(soc, ceiling) for soc in socs or ("Ascend910B4",)]
