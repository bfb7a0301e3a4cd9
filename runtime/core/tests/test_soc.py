from __future__ import annotations

import pytest

from npu_op_runtime.soc import GATE_SOCS, SOCS, get_soc

# Names that triton-ascend 3.2.0 takes as TRITON_ASCEND_ARCH and that the table must know.
A5 = ("910_9579", "910_9581", "910_9589", "910_9599")
REQUIRED = ("910B1", "910B2", "910B3", "910B4", "910_9391", "910_9382", "910_9372", "910_9362", *A5)


@pytest.mark.parametrize("name", REQUIRED)
def test_required_socs_are_known_with_and_without_prefix(name):
    assert get_soc(name) is get_soc(f"Ascend{name}") is SOCS[f"Ascend{name}"]


def test_gate_socs_are_in_the_table():
    assert all(name in SOCS for name in GATE_SOCS)


@pytest.mark.parametrize("soc", SOCS.values(), ids=lambda soc: soc.name)
def test_rows_are_consistent(soc):
    assert soc.vector_cores == 2 * soc.cube_cores
    assert soc.ub_bytes % 32 == 0
    assert soc.l2_bytes < soc.hbm_bytes
    assert (soc.gm_bandwidth is None) == (soc.gm_bytes_per_cycle is None)


def test_bandwidth_of_910b4_by_cann():
    # 20 cube cores x 32 B/cycle x 1.5 GHz.
    assert get_soc("Ascend910B4").gm_bandwidth == pytest.approx(0.96e12)


def test_bins_of_a_die_share_its_row():
    assert get_soc("Ascend910B4-1") is get_soc("Ascend910B4")


def test_unknown_soc_names_the_known_ones():
    with pytest.raises(ValueError, match=r"soc must be one of Ascend910B1, .*\(got 'Ascend310P3'\)"):
        get_soc("Ascend310P3")
