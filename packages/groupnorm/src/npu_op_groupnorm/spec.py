"""The cases of GroupNorm and what the lab needs to derive its tests, compile gate, emulation and benchmarks from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_op_runtime.spec import DTYPES, Case, InputFactory, Model, OperatorSpec, Traffic

from .op import group_norm
from .reference import group_norm_reference

# Channels and elements per channel of Liger-Kernel's benchmark of this operator; four channels make a group there.
_LIGER_SPATIAL, _LIGER_DEPTH = 512, 4


def _case(name: str, samples: int, groups: int, depth: int, spatial: int, dtype: str = "bfloat16", **fields: Any) -> Case:
    # D = channels per group, S = elements per channel. weight, bias: 0 = none, 1 = the dtype of x, 2 = fp32
    given = {"weight": fields.pop("weight", 1), "bias": fields.pop("bias", 1), "mean": fields.pop("mean", 0)}
    return Case(
        name, {"N": samples, "D": depth, "S": spatial, **given}, dtype, {"num_groups": groups, **fields.pop("options", {})}, **fields
    )


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(f"resident-{dtype}", 3, 8, 4, 64, dtype)
        yield _case(f"odd-sizes-{dtype}", 3, 5, 3, 49, dtype)
    # Cases that broke others: tasks that are no multiple of the grid, many elements per channel, more than three dimensions.
    yield _case("tasks-2x25", 2, 25, 4, 16, "float32")
    yield _case("tasks-4x25", 4, 25, 4, 16, "float32")
    yield _case("spatial-2048", 1, 4, 1, 2048, "float32")
    yield _case("four-dimensions", 2, 2, 2, 15, layout="4d")
    yield _case("five-dimensions", 2, 2, 2, 30, "float32", layout="5d")
    yield _case("mean-3", 3, 4, 6, 100, mean=3)
    yield _case("mean-3-float32", 3, 4, 6, 100, "float32", mean=3)
    # Groups that UB holds one of, and larger ones: even tiles, ragged tiles, instance norm, one long row.
    yield _case("one-group-fits", 1, 2, 10, 1024)
    yield _case("wide-even", 1, 3, 10, 2048)
    yield _case("wide-ragged", 1, 2, 7, 3001)
    yield _case("wide-prime-depth", 1, 2, 37, 640, "float32")
    yield _case("wide-many-channels", 1, 1, 516, 50)
    yield _case("wide-instance-norm", 1, 3, 1, 20001)
    yield _case("instance-norm", 2, 7, 1, 81)
    yield _case("one-group", 2, 1, 12, 100)
    yield _case("one-channel", 2, 1, 1, 33)
    # Few elements per channel: RWKV's group norm over heads has one.
    yield _case("no-spatial", 33, 4, 64, 1)
    yield _case("no-spatial-odd", 9, 3, 5, 1, "float32")
    yield _case("spatial-4", 5, 6, 10, 4)
    yield _case("spatial-9-float32", 5, 2, 8, 9, "float32", weight=2, bias=2)
    yield _case("no-bias", 3, 4, 4, 32, bias=0)
    yield _case("no-weight", 3, 4, 4, 32, weight=0)
    yield _case("no-parameters", 3, 4, 4, 32, weight=0, bias=0)
    yield _case("parameters-float32", 3, 4, 4, 32, weight=2, bias=2)
    yield _case("weight-float32", 3, 4, 4, 32, weight=2)
    yield _case("eps-large", 3, 4, 4, 32, options={"eps": 1.0})
    yield _case("channels-sliced", 3, 4, 4, 32, layout="channels-sliced")
    yield _case("no-spatial-sliced", 9, 4, 16, 1, layout="channels-sliced")
    yield _case("parameters-strided", 3, 4, 4, 32, layout="parameters-strided")
    bench = frozenset({"bench"})
    yield _case("bench-h200", 16, 512, 4, 512, tags=bench)
    yield _case("bench-unet-64", 2, 32, 10, 4096, tags=bench)
    yield _case("bench-unet-16", 2, 32, 40, 256, tags=bench)
    yield _case("bench-vae", 1, 32, 4, 1048576, tags=bench)
    yield _case("bench-rwkv", 4096, 64, 64, 1, tags=bench)
    yield _case("many-groups", 1025, 64, 2, 16, tags=bench)


_SHAPES = {"4d": (3, -1), "5d": (3, -1, 2)}


def _make_inputs(case: Case, factory: InputFactory) -> dict[str, Any]:
    dims, dtype = case.dims, case.torch_dtype
    samples, channels, spatial = dims["N"], case.options["num_groups"] * dims["D"], dims["S"]
    extra = 16 if case.layout == "channels-sliced" else 0
    x = factory.randn(samples, channels + extra, spatial, dtype=dtype, offset=float(dims["mean"]))[:, extra // 2 : channels + extra // 2]
    dtypes = {0: None, 1: dtype, 2: torch.float32}
    weight_dtype, bias_dtype = dtypes[dims["weight"]], dtypes[dims["bias"]]
    step = 3 if case.layout == "parameters-strided" else 1
    return {
        "x": x.squeeze(2) if spatial == 1 else x.unflatten(2, _SHAPES[case.layout]) if case.layout in _SHAPES else x,
        "weight": None if weight_dtype is None else factory.randn(step * channels, dtype=weight_dtype, scale=0.2, offset=1.0)[::step],
        "bias": None if bias_dtype is None else factory.randn(step * channels, dtype=bias_dtype, scale=0.2)[::step],
    }


def _traffic(case: Case) -> Traffic:
    channels, itemsize = case.options["num_groups"] * case.dims["D"], case.torch_dtype.itemsize
    tensor = case.dims["N"] * channels * case.dims["S"] * itemsize
    weight, bias = (channels * (0, itemsize, 4)[case.dims[name]] for name in ("weight", "bias"))
    return Traffic(forward=2 * tensor + weight + bias, backward=3 * tensor + 2 * weight + bias)


def _bench_case(model: Model, tokens: int) -> Case:
    groups = model.hidden_size // _LIGER_DEPTH
    return _case(f"{model.name}-T{tokens}", -(-tokens // _LIGER_SPATIAL), groups, _LIGER_DEPTH, _LIGER_SPATIAL, tags=frozenset({"bench"}))


def _liger(x: torch.Tensor, num_groups: int, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    from liger_kernel.ops import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(x, weight, bias, x.shape[1], num_groups, eps)


SPEC = OperatorSpec(
    name="groupnorm",
    cases=tuple(_cases()),
    make_inputs=_make_inputs,
    function=group_norm,
    reference=group_norm_reference,
    differentiable=("x", "weight", "bias"),
    traffic=_traffic,
    bench_case=_bench_case,
    peers={"liger": _liger},
    rows="N",
    free_dims={"D": range(1, 20), "S": range(1, 400)},
)
