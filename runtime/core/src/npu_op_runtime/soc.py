"""Table of Ascend SoCs, usable with no device.

Sources, named beside the rows below:
[ini]  CANN's own platform descriptions, `platform_config/<SoC>.ini` (repository hicann/runtime, commit 681ef761): core
       counts, clock, L2, HBM, `ddr_rate`, `vec_calc_size`, L2 rates.
[bir]  `dlti.target_system_spec` printed by `bishengir-compile` 1.2.0 (PyPI ascendnpu-ir) for that target: core counts, UB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True)
class Soc:
    """One SoC as PyTorch sees it: one die.

    Attributes:
        name: the target name that the compiler takes, `Ascend910B4`.
        generation: "A2", "A3" or "A5".
        cube_cores, vector_cores: number of AIC and AIV cores.
        ub_bytes: Unified Buffer of one vector core, bytes.
        l2_bytes, hbm_bytes: capacities, bytes.
        clock_hz: core clock, Hz.
        gm_bytes_per_cycle: `ddr_rate`, bytes per cycle per cube core; the vector cores of the group share it on A2/A3.
            None where no source gives the figure for that name.
    """

    name: str
    generation: str
    cube_cores: int
    vector_cores: int
    ub_bytes: int
    l2_bytes: int
    hbm_bytes: int
    clock_hz: float
    gm_bytes_per_cycle: float | None

    @property
    def gm_bandwidth(self) -> float | None:
        """GM bytes per second by CANN's figures: cube cores x ddr_rate x clock (a hint of CANN, not a measured cap)."""
        if self.gm_bytes_per_cycle is None:
            return None
        return self.cube_cores * self.gm_bytes_per_cycle * self.clock_hz


def _a2_a3(name: str, generation: str, cube: int, mhz: int, hbm_gib: int, l2_mib: int) -> Soc:
    # UB 192 KiB: [ini] and [bir] (1,572,864 bits) agree on every A2/A3 row; ddr_rate 32 B/cycle: [ini].
    return Soc(name, generation, cube, 2 * cube, 192 * KIB, l2_mib * MIB, hbm_gib * GIB, mhz * 1e6, 32.0)


def _a5(name: str, cube: int, mhz: int, hbm_gib: int, gm_rate: float | None) -> Soc:
    # UB 253,952 B: [ini]; [bir] prints the same (2,031,616 bits). L2 128 MiB: [ini], full bins.
    return Soc(name, "A5", cube, 2 * cube, 253952, 128 * MIB, hbm_gib * GIB, mhz * 1e6, gm_rate)


SOCS: Mapping[str, Soc] = {
    soc.name: soc
    for soc in (
        _a2_a3("Ascend910B1", "A2", 24, 1850, 64, 192),  # [ini] cores also [bir]
        _a2_a3("Ascend910B2", "A2", 24, 1800, 64, 192),  # [ini] cores also [bir]
        _a2_a3("Ascend910B3", "A2", 20, 1800, 64, 192),  # [ini] cores also [bir]
        _a2_a3("Ascend910B4", "A2", 20, 1500, 32, 96),  # [ini] cores also [bir]
        _a2_a3("Ascend910_9391", "A3", 24, 1850, 64, 192),  # [ini] cores also [bir]
        _a2_a3("Ascend910_9392", "A3", 24, 1850, 64, 192),  # [ini]
        _a2_a3("Ascend910_9381", "A3", 24, 1800, 64, 192),  # [ini]
        _a2_a3("Ascend910_9382", "A3", 24, 1800, 64, 192),  # [ini] cores also [bir]
        _a2_a3("Ascend910_9372", "A3", 20, 1800, 64, 192),  # [ini] cores also [bir]
        _a2_a3("Ascend910_9362", "A3", 20, 1500, 64, 168),  # [ini] cores also [bir]
        _a5("Ascend910_9579", 28, 1650, 128, 31.0),  # cores [bir]; 950PR rates [ini]
        _a5("Ascend910_9581", 32, 1650, 144, 80.0),  # cores [bir]; 950DT rates [ini]
        _a5("Ascend910_9589", 32, 1650, 128, None),  # cores [bir]; PR and DT share the number: the smaller HBM, no rate
        _a5("Ascend910_9599", 36, 1800, 128, None),  # cores [bir]; as 9589
    )
}

# The SoCs that every operator must compile for.
GATE_SOCS = ("Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910_9391")

# Names of the same die in other bins: torch_npu reports them, the row is the one of the left-hand SoC.
_SAME_DIE: Mapping[str, str] = {"Ascend910B2C": "Ascend910B2", "Ascend910B4-1": "Ascend910B4", "Ascend910_9363": "Ascend910_9362"}


def get_soc(name: str) -> Soc:
    """The row of a SoC, by the compiler's or torch_npu's name (`Ascend910B4`); the prefix "Ascend" may be left out.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    full = name if name.startswith("Ascend") else f"Ascend{name}"
    full = _SAME_DIE.get(full, full)
    if full not in SOCS:
        raise ValueError(f"soc must be one of {', '.join(SOCS)} (got {name!r})")
    return SOCS[full]
