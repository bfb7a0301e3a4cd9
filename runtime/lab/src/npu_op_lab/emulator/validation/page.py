"""Writes the validation page: every published figure beside the modelled one, the misses too."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

import torch
import torch.nn.functional as F

from npu_op_runtime.gated_mlp import mlp_formula

from ...peers.liger import liger_ascend
from ..costs import Ceiling
from ..eager import model_eager
from ..kernel import KernelTiming
from ..run import emulate
from . import kernels, liger

_B1, _B2, _B3, _B4 = "Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4"
_CEILING: Ceiling = "measured"

_HEAD = """\
# The model against published measurements

<!-- Written by `npu-lab validate`. Do not edit. -->

Nothing here was measured by this project: the published figures were measured by others, each with its source, and the modelled
ones are the emulator's, at the *measured* HBM ceiling of the part. A time of the emulator is the device's; where a published time has
the host's part in it, the table says so. Figures that calibrate a cost (`costs.json`) are marked *calibrates*: they show that the
model has the form of the hardware, not that it predicts it.
"""


def page() -> str:
    """The page as Markdown; takes about a minute."""
    sections = (_add, _geglu, _mlp, _rfc, _poly_norm, _llama4_rope, _rankings)
    return "\n".join([_HEAD, *(section() for section in sections)])


def _published(name: str) -> Any:
    return json.loads(_text("figures.json"))[name]


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("published", name).read_text()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def _off(modelled: float, published: float) -> str:
    return f"{modelled / published - 1:+.0%}"


def _launch(soc: str, call: Callable[[], Any]) -> KernelTiming:
    """The time of the one kernel that a call launches."""
    with emulate(soc, values=False, ceiling=_CEILING) as run:
        call()
    (timing,) = run.kernels
    return timing


def _add() -> str:
    figures, n = _published("add"), 8192 * 8192
    rows = []
    for row in figures["rows"]:
        x, y, z = (torch.empty(n, dtype=torch.float16) for _ in range(3))
        launch = functools.partial(kernels.add[(row["cores"],)], x, y, z, n, BLOCK=row["block"], multibuffer=row["multibuffer"])
        timing = _launch(_B1, launch)
        us = timing.seconds * 1e6
        rows.append(
            [
                row["name"],
                f"{row['us']:.0f}",
                f"{us:.0f}",
                _off(us, row["us"]),
                f"{row['vector_us']:.0f} / {us * timing.busy['V']:.0f}",
                f"{row['mte2_us']:.0f} / {us * timing.busy['MTE2']:.0f}",
            ]
        )
    return f"""\
## Element-wise addition on an Atlas A2 (calibrates)

{figures["source"]}. The modelled kernel is the same loop in Triton, compiled by bishengir-compile for a 910B1.

{_table(("case", "published us", "modelled us", "off", "vector us, published / modelled", "MTE2 us, published / modelled"), rows)}
The published pipe times count waiting for data; the modelled ones only the time that a pipe is taken, hence the lower MTE2 figures of
the single-buffered cases. Case 1 is a miss: the sample overlaps its store with the next load, bishengir-compile reuses the buffer and
waits for it. Case 2 is a miss of the fluid HBM model: 48 cores in step leave HBM idle while they all compute, the model lets them share it.
"""


def _mlp_series() -> dict[tuple[str, str, str], dict[int, float]]:
    """Published figures of the whole MLP by metric, provider and pass, then by sequence length."""
    return {
        (entry["metric_name"], entry["kernel_provider"], entry["kernel_operation_mode"]): dict(
            zip(entry["x_values"], entry["y_values_50"], strict=True)
        )
        for entry in json.loads(_text("geglu_mlp_910b4.json"))
    }


def _geglu() -> str:
    series, rows = _mlp_series(), []
    for tokens in (1024, 2048, 4096, 8192):
        ours, eager = _geglu_phases(8 * tokens, 11008)
        for phase in ("forward", "backward"):
            saved = series["speed", "huggingface", phase][tokens] - series["speed", "liger", phase][tokens]
            modelled = 1e3 * (getattr(eager, phase) - getattr(ours, phase))
            rows.append([f"{tokens}", phase, f"{saved:.2f}", f"{modelled:.2f}", _off(modelled, saved), "yes" if modelled > 0 else "**no**"])
    return f"""\
## GEGLU in an MLP on a 910B4

{_published("geglu_mlp_910b4.json")}. What Liger's kernel saves against Hugging Face is the difference of two whole MLPs, in which
the matrix products cancel out. The forward differences calibrate the part's HBM ceiling; the backward ones are predictions.

{_table(("sequence length", "pass", "published saving ms", "modelled saving ms", "off", "same winner"), rows)}
The model says too little of the backward pass: eager's `gelu_backward` is taken to run at full bandwidth, whatever it computes.
"""


def _mlp() -> str:
    series, rows = _mlp_series(), []
    for tokens in (1024, 2048, 4096, 8192):
        ours, eager = _mlp_phases(8 * tokens, 4096, 11008)
        for phase in ("forward", "backward"):
            row = [f"{tokens}", phase]
            for provider, phases in (("huggingface", eager), ("liger", ours)):
                published, modelled = series["speed", provider, phase][tokens], 1e3 * getattr(phases, phase)
                row += [f"{published:.1f}", f"{modelled:.1f}", _off(modelled, published)]
            speedups = (
                series["speed", "huggingface", phase][tokens] / series["speed", "liger", phase][tokens],
                getattr(eager, phase) / getattr(ours, phase),
            )
            rows.append([*row, *(f"{speedup:.3f}" for speedup in speedups)])
    return f"""\
## The whole MLP on a 910B4 (forward calibrates)

The same benchmark, products of matrices included. The forward pass calibrates the share of the cube's peak that they are given; the
backward one is a prediction.

{
        _table(
            (
                *("sequence length", "pass", "Hugging Face ms", "modelled ms", "off", "Liger ms", "modelled ms", "off"),
                *("published speedup", "modelled speedup"),
            ),
            rows,
        )
    }
The backward pass is a miss: its products, half of which are of transposed operands, reach 0.69 to 0.79 of the peak as published, and the
model gives all products the same share. The speedup comes out low all the same, for of what the activation saves the model misses more.
"""


def _mlp_phases(rows: int, hidden: int, width: int) -> tuple[liger.Phases, liger.Phases]:
    def around(activation: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return functools.partial(mlp_formula, activation)

    operator = liger.Operator(
        "geglu_mlp",
        lambda make: [make(rows, hidden), make(width, hidden), make(width, hidden), make(hidden, width)],
        around(lambda a, b: liger_ascend("geglu").LigerGELUMulFunction.apply(a, b)),
        around(lambda a, b: F.gelu(a, approximate="tanh") * b),
    )
    return liger.model(operator, _B4, _CEILING)


def _geglu_phases(rows: int, width: int) -> tuple[liger.Phases, liger.Phases]:
    operator = liger.Operator(
        "geglu",
        lambda make: [make(rows, width), make(rows, width)],
        lambda a, b: liger_ascend("geglu").LigerGELUMulFunction.apply(a, b),
        lambda a, b: F.gelu(a, approximate="tanh") * b,
    )
    return liger.model(operator, _B4, _CEILING)


def _rfc() -> str:
    published = {row[0]: row[1:] for row in csv.reader(line for line in _text("rfc_1159.csv").splitlines() if not line.startswith("#"))}
    rows, agreed, compared = [], 0, 0
    for operator in liger.OPERATORS:
        ours, eager = liger.model(operator, _B2, _CEILING)
        cells = [operator.name]
        for phase, verdict in zip(("forward", "backward", "full"), published[operator.name][:3], strict=True):
            speedup = getattr(eager, phase) / getattr(ours, phase)
            same = (speedup > 1) == (verdict == "1")
            agreed, compared = agreed + same, compared + 1
            cells.append(f"{'faster' if verdict == '1' else 'slower'} / {speedup:.2f}" + ("" if same else " **miss**"))
        rows.append([*cells, _RFC_REASONS.get(operator.name, "")])
    return f"""\
## Liger against PyTorch, the rows of RFC #1159

{_published("rfc_1159.csv")}: whether Liger is faster than PyTorch or Hugging Face, times with the host's part. Modelled: speedup of
Liger 0.8.5 (the only version that this project installs) over eager, device time, 910B2, T = 4096 (losses 1024 tokens of 128,256).
{agreed} of {compared} verdicts agree.

{_table(("operator", "forward, published / modelled speedup", "backward", "full", "why it misses"), rows)}"""


_OLD = "the RFC ran Liger 0.7.0, which has no NPU kernel for it: its GPU kernel ran"
_GENEROUS = "eager is taken to run at full bandwidth and out of L2, whatever it computes; the RFC has the host's part of its launches"
_RFC_REASONS = {
    "rms_norm": "0.7.0's kernel takes one row at a time, twice as long in the model; eager's eight kernels still take longer: a miss",
    "swiglu": "the RFC times a whole MLP: the matrix products leave a ratio near 1",
    "geglu": _GENEROUS,
    "llama4_rope": _GENEROUS,
    "cross_entropy": _OLD,
    "dyt_beta=False": _OLD,
    "dyt_beta=True": _OLD,
    "kl_div": _OLD,
    "qwen2vl_mrope": "one launch in the model; the RFC has the host's part of it",
}


def _poly_norm() -> str:
    figures, rows = _published("poly_norm"), []
    for row in figures["rows"]:
        x = torch.empty(2048, row["H"], dtype=torch.bfloat16)
        weight, bias = torch.empty(3), torch.empty(())
        forward = functools.partial(liger_ascend("poly_norm").LigerPolyNormFunction.apply, x, weight, bias, 1e-6, False)
        timing = _launch(_B4, forward)
        rows.append([str(row["H"]), f"{row['ms']:.3f}", f"{timing.seconds * 1e3:.3f}", f"{row['ms'] - timing.seconds * 1e3:.3f}"])
    return f"""\
## PolyNorm forward on a 910B4

{figures["source"]}. The host takes most of it at small widths: what is left over should be about the same in every row.

{_table(("H", "published ms", "modelled device ms", "left for the host ms"), rows)}"""


def _llama4_rope() -> str:
    figures, rows = _published("llama4_rope"), []
    for row in figures["rows"]:
        dim = row["H"] // 32
        q, k = (torch.empty(1, 2048, heads, dim, dtype=torch.bfloat16) for heads in (32, 8))
        freqs = torch.view_as_complex(torch.empty(1, 2048, dim // 2, 2))
        with emulate(_B4, values=False, ceiling=_CEILING) as run:
            liger_ascend("llama4_rope").LigerLlama4RopeFunction.apply(q, k, freqs)
        meta = [tensor.to("meta") for tensor in (q, k, freqs)]
        eager = model_eager(liger.hf_llama4_rope, *meta, soc=_B4, ceiling=_CEILING)
        published = row["huggingface_ms"] / row["liger_ms"]
        rows.append(
            [
                str(row["H"]),
                f"{row['liger_ms']:.3f}",
                f"{run.seconds * 1e3:.3f}",
                f"{row['huggingface_ms']:.3f}",
                f"{eager.seconds * 1e3:.3f}",
                f"{published:.2f}",
                f"{eager.seconds / run.seconds:.2f}",
            ]
        )
    head = ("H", "Liger ms", "modelled", "Hugging Face ms", "modelled", "published speedup", "modelled speedup")
    return f"""\
## Llama 4 rope forward on a 910B4

{figures["source"]}. Published times have the host's part, about 0.19 ms for Liger and 0.29 ms for Hugging Face.

{_table(head, rows)}"""


def _rankings() -> str:
    modelled = {
        "rope over 65,536 rows: one row a task against 64 rows": _rope_ratio,
        "copy: 1 KB tiles against 8 KB tiles": _copy_ratio,
        "comparison of int64 against fp32": _compare_ratio,
        "RMSNorm: 1024 programs, two passes over the row against whole rows in 40 programs": _rms_ratio,
    }
    rows = []
    for figure in _published("rankings"):
        ratio = modelled[figure["name"]]()
        span = f"{figure['low']:g}" if figure["low"] == figure["high"] else f"{figure['low']:g} to {figure['high']:g}"
        rows.append([figure["name"], span, f"{ratio:.1f}", "yes" if ratio > 1 else "**no**", figure["source"]])
    return f"""\
## Two versions of a kernel

How much slower the first is than the second. The 950 figures are another generation, modelled on a 910B3: its order, not its size, is
what can be compared.

{_table(("versions", "published", "modelled", "same winner", "source"), rows)}"""


def _ratio(slow: Callable[[], Any], fast: Callable[[], Any]) -> float:
    return _launch(_B3, slow).seconds / _launch(_B3, fast).seconds


def _rope_ratio() -> float:
    x, cos, sin = (torch.empty(65536, width, dtype=torch.bfloat16) for width in (64, 32, 32))
    y = torch.empty_like(x)
    one, many = (functools.partial(kernels.rope[(40,)], x, cos, sin, y, 65536, HALF=32, ROWS=rows) for rows in (1, 64))
    return _ratio(one, many)


def _copy_ratio() -> float:
    x, y = torch.empty(1 << 25), torch.empty(1 << 25)
    small, large = (functools.partial(kernels.copy[(40,)], x, y, 1 << 25, BLOCK=block, multibuffer=False) for block in (256, 2048))
    return _ratio(small, large)


def _compare_ratio() -> float:
    n, y = 1 << 16, torch.empty(1 << 16)
    whole, real = torch.empty(n, dtype=torch.int64), torch.empty(n)
    return _ratio(lambda: kernels.below[(40,)](whole, y, n, 7, BLOCK=1024), lambda: kernels.below[(40,)](real, y, n, 7.0, BLOCK=1024))


def _rms_ratio() -> float:
    x = torch.empty(16384, 4096, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    return _ratio(
        lambda: kernels.rms_two_passes[(1024,)](x, y, 4096, ROWS=16, BLOCK=512),
        lambda: kernels.rms_whole_rows[(40,)](x, y, 16384, 4096, ROWS=2),
    )
