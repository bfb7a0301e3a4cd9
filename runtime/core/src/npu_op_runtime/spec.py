"""What an operator's `spec.py` is made of: its cases, inputs, reference, bytes and peers, listed once.

Tests, the compile gate, the emulator, the benchmark sweep and the scoreboard are derived from it by the lab.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .soc import GATE_SOCS

DTYPES: Mapping[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


@dataclass(frozen=True)
class Case:
    """One named call of an operator.

    `dims` are the sizes `make_inputs` reads (`{"T": 64, "H": 4096}`), `dtype` a key of `DTYPES`, `options` the keyword
    arguments of the call, `layout` a word that `make_inputs` understands ("contiguous", "sliced", "transposed", ...).
    Tags: "values" = small enough to execute in the interpreter and the emulator; "bench" = a benchmark shape, compiled and
    modelled but executed only on an accelerator; "gradient-free" = forward only; "inplace" = the call may overwrite its inputs.
    """

    name: str
    dims: Mapping[str, int]
    dtype: str = "bfloat16"
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "contiguous"
    tags: frozenset[str] = frozenset({"values"})

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


class InputFactory(Protocol):
    """Makes the tensors of a case on one device from one seed; the lab implements it."""

    def randn(self, *shape: int, dtype: torch.dtype, scale: float = 1.0, offset: float = 0.0) -> torch.Tensor: ...

    def randint(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor: ...


def rows_in_layout(
    factory: InputFactory, layout: str, rows: int, width: int, *, dtype: torch.dtype, scale: float = 1.0, offset: float = 0.0
) -> torch.Tensor:
    """Random rows of `width` elements in one of the layouts that row-wise operators take without a copy.

    "transposed": (2, 4, rows, width), a view of (2, rows, 4, width); "sliced": out of wider rows; "sliced-twice": out of wider
    rows and of longer blocks; any other word: (rows, width), contiguous.
    """

    def randn(*shape: int) -> torch.Tensor:
        return factory.randn(*shape, dtype=dtype, scale=scale, offset=offset)

    if layout == "transposed":
        return randn(2, rows, 4, width).transpose(1, 2)
    if layout == "sliced":
        return randn(rows, width + 32)[:, :width]
    if layout == "sliced-twice":
        return randn(4, rows // 4 + 3, width + 32)[:, 2:-1, 16:-16]
    return randn(rows, width)


@dataclass(frozen=True)
class Traffic:
    """The least a pass must do: GM bytes (every input read once, every output written once).

    `no_grad_forward` is given where a forward without gradient moves less than one that prepares backward.
    """

    forward: int
    backward: int
    no_grad_forward: int | None = None


@dataclass(frozen=True)
class Model:
    """The sizes of a published model that benchmark shapes are named after."""

    name: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


# The models' own config.json on the Hugging Face hub.
MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("llama_3_8b", 4096, 14336, 128256, 32, 8, 128),
        Model("llama_2_7b", 4096, 11008, 32000, 32, 32, 128),
        Model("qwen2.5_7b", 3584, 18944, 152064, 28, 4, 128),
        Model("deepseek_v3", 7168, 18432, 129280, 128, 128, 128),
    )
}


@dataclass(frozen=True)
class OperatorSpec:
    """Everything the lab needs to know of an operator.

    Attributes:
        name: folder and short name, `rmsnorm`.
        cases: the named cases.
        make_inputs: `(case, factory) -> {argument: value}`; tensors come without `requires_grad`.
        function: the public function, called `function(**inputs, **case.options)`.
        reference: the formula in plain PyTorch with the same arguments; fp64 inputs give the fp64 gold.
        differentiable: the arguments that get a gradient when they are floating tensors; none of an operator for inference, which
            refuses to be asked for one.
        traffic: the minimum bytes of a case.
        bench_case: the benchmark case for a model at a number of tokens.
        models: those of `MODELS` that have what the operator computes.
        bench_variants: calls that the benchmark reports apart, by the name of their row, each a change of the bench case.
        peers: other implementations by name ("liger", "vendor"), same arguments as `function`; import inside the function, Liger's
            classes from `liger_kernel.ops`, where Liger puts those of the device at hand.
        judged: the stand-in of a benchmark case whose values are judged on a CPU: what only PyTorch's own products see may shrink.
        rows: the key of `Case.dims` that counts rows, tokens or batch: no kernel is compiled again when it changes.
        free_dims: other keys of `Case.dims` that may take any value of a range, whatever the rest: `{"H": range(1, 9000)}`.
        socs: the SoCs that the compile gate covers.
    """

    name: str
    cases: tuple[Case, ...]
    make_inputs: Callable[[Case, InputFactory], dict[str, Any]]
    function: Callable[..., Any]
    reference: Callable[..., Any]
    differentiable: tuple[str, ...]
    traffic: Callable[[Case], Traffic]
    bench_case: Callable[[Model, int], Case]
    models: tuple[str, ...] = tuple(MODELS)
    bench_variants: Mapping[str, Callable[[Case], Case]] = field(default_factory=dict)
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    judged: Callable[[Case], Case] = lambda case: case
    rows: str = "T"
    free_dims: Mapping[str, range] = field(default_factory=dict)
    socs: tuple[str, ...] = GATE_SOCS

    def __post_init__(self) -> None:
        names = [case.name for case in self.cases]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"cases of {self.name} must have unique names, these come twice: {', '.join(twice)}")
        for dim in (self.rows, *self.free_dims):
            lacking = [case.name for case in self.cases if dim not in case.dims]
            if lacking:
                raise ValueError(f"cases of {self.name} must have the dim {dim!r}, these do not: {', '.join(lacking)}")
