from __future__ import annotations

from dataclasses import replace

from npu_op_lab.bench.points import points_of
from npu_op_lab.bench.verify import reduced
from npu_op_runtime.spec import Case

from .bench_fakes import spec


def with_half_the_width(case: Case) -> Case:
    return replace(case, dims={**case.dims, "H": case.dims["H"] // 2})


def test_what_is_judged_is_the_specs_stand_in_at_fewer_rows():
    (point,) = points_of(spec(judged=with_half_the_width), ["llama_3_8b"], [1024])
    one_row = point.spec.traffic(replace(point.case, dims={**point.case.dims, point.spec.rows: 1})).forward
    case = reduced(point, 10 * one_row)
    assert case.dims["H"] * 2 == point.case.dims["H"]
    assert case.dims[point.spec.rows] == 10
