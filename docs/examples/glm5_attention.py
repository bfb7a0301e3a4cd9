"""What happens to a token between the projections of a GLM-5 or DeepSeek-V3 attention layer, as transformers does it and in four launches.

    python docs/examples/glm5_attention.py            # GLM-5; --model deepseek-v3 for the other
    python docs/examples/glm5_attention.py --page     # rewrites the tables of docs/glm5-attention.md

First the values: transformers' own attention module with random weights at the model's widths, up to the moment at which it attends,
beside the same weights prepared by the fused kernels, which the emulator runs as compiled for an Ascend 910B4. Then the time, modelled: a
decode step of 1 to 64 sequences, and a prefill of 4096 tokens, on an Ascend 910B4 and a 910B3, without the projections, which both share.

Needs npu-op-split-qk-norm, npu-op-rope-qk-mqa, npu-op-rotary-cache, npu-op-layernorm, npu-op-lab[compiler] and transformers.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import DeepseekV3Config, GlmMoeDsaConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaAttention

from npu_op_lab.emulator import emulate, model_eager
from npu_op_layernorm import layer_norm
from npu_op_rope_qk_mqa import fused_rope_qk_mqa
from npu_op_rotary_cache import RotaryCache
from npu_op_split_qk_norm import SplitQKNorm

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "glm-5": lambda: GlmMoeDsaAttention(GlmMoeDsaConfig(), 0),
    "deepseek-v3": lambda: DeepseekV3Attention(DeepseekV3Config(), 0),
}
SOCS = ("Ascend910B4", "Ascend910B3")
PAGE = Path(__file__).parents[1] / "glm5-attention.md"
# Sequences and new tokens of each: decode steps, then a prefill.
STEPS = ((1, 1), (4, 1), (16, 1), (64, 1), (1, 4096))


@dataclass(frozen=True)
class Prepared:
    """What attention starts from: (tokens, heads, nope + rope), (tokens, kv_lora_rank), (tokens, rope); of the sparse indexer, if there is
    one, (tokens, its heads, its width) and (tokens, its width)."""

    query: torch.Tensor
    k_nope: torch.Tensor
    k_pe: torch.Tensor
    index_query: torch.Tensor | None = None
    index_key: torch.Tensor | None = None


class FusedPreparation(torch.nn.Module):
    """The preparation of an attention module of transformers, on its own weights.

    One projection where the module has two, then: parted and normalised (1 launch); query and key turned in place (1); the indexer's key
    normalised (1), its query and key turned in place (1).
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        latent = attention.q_a_proj, attention.kv_a_proj_with_mqa
        self.qkv_a_proj = torch.nn.Linear(latent[0].in_features, sum(each.out_features for each in latent), bias=False, device="meta")
        self.qkv_a_proj.weight = torch.nn.Parameter(torch.cat([each.weight for each in latent]))
        self.q_b_proj = attention.q_b_proj
        self.split = SplitQKNorm(attention.q_a_layernorm, attention.kv_a_layernorm, attention.qk_rope_head_dim)
        self.nope, self.rope = attention.qk_nope_head_dim, attention.qk_rope_head_dim
        self.indexer = getattr(attention, "indexer", None)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Prepared:
        q_lora, k_nope, k_pe = self.split(self.qkv_a_proj(hidden))
        query = self.q_b_proj(q_lora).view(len(hidden), -1, self.nope + self.rope)
        fused_rope_qk_mqa(query[..., self.nope :], k_pe, cos, sin, interleaved=True, inplace=True)
        if self.indexer is None:
            return Prepared(query, k_nope[:, 0], k_pe[:, 0])
        norm = self.indexer.k_norm
        index_query = self.indexer.wq_b(q_lora).view(len(hidden), -1, self.indexer.head_dim)
        index_key = layer_norm(self.indexer.wk(hidden), norm.weight, norm.bias, norm.eps)
        fused_rope_qk_mqa(index_query, index_key, cos, sin, interleaved=True, rotary_dim=self.rope, inplace=True)
        return Prepared(query, k_nope[:, 0], k_pe[:, 0], index_query, index_key)


class Ready(Exception):
    """No error: it leaves the module where everything that attention starts from is there. It keeps alive what its frames hold."""


class Watch:
    """Stands in for the cache of a layer, which gets each key as soon as it is ready."""

    def __init__(self, stop: bool) -> None:
        self.stop = stop
        self.seen: dict[str, torch.Tensor] = {}

    def update(self, k_nope: torch.Tensor, k_pe: torch.Tensor, layer: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen |= {"k_nope": k_nope, "k_pe": k_pe}
        return k_nope, k_pe

    def update_indexer(self, key: torch.Tensor, layer: int) -> torch.Tensor:
        self.seen["index_key"] = key
        if self.stop:
            raise Ready
        return key

    def attend(self, module: Any, query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        """Stands in for attention itself."""
        self.seen["query"] = query
        if self.stop:
            raise Ready
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], module.v_head_dim), None


@contextmanager
def watching(attention: Any, stop: bool = False) -> Iterator[Watch]:
    """Within it, the module hands what it prepared to a `Watch` and does not attend."""
    watch, before = Watch(stop), attention.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register("watched", watch.attend)
    attention.config._attn_implementation = "watched"
    try:
        yield watch
    finally:
        attention.config._attn_implementation = before


def transformers_preparation(
    attention: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[Watch, torch.Tensor | None]:
    """What transformers' module prepares from (sequences, tokens, hidden_size), and the tokens that its indexer picked."""
    sequences, tokens = hidden.shape[:2]
    mask = torch.zeros(sequences, 1, tokens, tokens).masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    angles = [angle.repeat(1, 2).view(sequences, tokens, -1) for angle in (cos, sin)]
    with torch.no_grad(), watching(attention) as watch:
        outputs = attention(hidden, position_embeddings=angles, attention_mask=mask, cache=watch)
    return watch, outputs[2] if len(outputs) > 2 else None


def parted(x: torch.Tensor, rope: int) -> torch.Tensor:
    """Turned columns in transformers' order, the even ones first; the fused kernels leave pairs where they are. `rope` last columns."""
    turned = x[..., -rope:]
    return torch.cat([x[..., :-rope], turned[..., ::2], turned[..., 1::2]], dim=-1)


def index_scores(prepared: Prepared, attention: Any, hidden: torch.Tensor) -> torch.Tensor:
    """How much each token of one sequence matters to each, by the sparse indexer's definition: (tokens, tokens), causal."""
    assert prepared.index_query is not None and prepared.index_key is not None
    per_head = torch.relu(torch.einsum("thd,sd->ths", prepared.index_query.float(), prepared.index_key.float()))
    scores = torch.einsum("ths,th->ts", per_head, attention.indexer.weights_proj(hidden).float())
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)


class Given(torch.nn.Module):
    """In place of a projection: its output is there."""

    def __init__(self, *shape: int, device: str) -> None:
        super().__init__()
        self.output = torch.empty(shape, dtype=torch.bfloat16, device=device)

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.output


def without_projections(module: Any, sequences: tuple[int, ...], device: str) -> Any:
    """The module on unwritten memory, every torch.nn.Linear in it replaced by its output: only what lies between them takes time."""
    module = module.to_empty(device=device).to(torch.bfloat16)
    for name, part in [(name, part) for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)]:
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, Given(*sequences, part.out_features, device=device))
    return module


@dataclass(frozen=True)
class Cost:
    """Modelled: seconds with a launch cost for each kernel, kernels, bytes from and to HBM, and the share of the kernels' own roof."""

    seconds: float
    launches: int
    hbm_bytes: float
    roof_share: float = 0.0

    @property
    def cells(self) -> tuple[str, str, str]:
        """Of the table."""
        return f"{self.seconds * 1e6:.1f} µs", str(self.launches), f"{self.hbm_bytes / 1e6:.1f}"


@functools.cache
def transformers_cost(model: str, sequences: int, tokens: int, soc: str) -> Cost:
    """transformers' module up to where it attends, by the eager model: each ATen kernel at full bandwidth."""
    with torch.device("meta"):
        attention = without_projections(MODELS[model](), (sequences, tokens), "meta")
        hidden = torch.empty(sequences, tokens, attention.hidden_size, dtype=torch.bfloat16)
        angles = [torch.empty(sequences, tokens, attention.qk_rope_head_dim, dtype=torch.bfloat16) for _ in range(2)]
        mask = torch.empty(sequences, 1, tokens, tokens)
    attention.expand_kv = lambda k_nope, k_pe: (None, None)  # belongs to attention: the latent key is what is cached

    def prepare() -> Ready:
        try:
            attention(hidden, position_embeddings=angles, attention_mask=mask, cache=watch)
        except Ready as ready:
            return ready
        raise RuntimeError("the module attended before it was stopped")

    with torch.no_grad(), watching(attention, stop=True) as watch:
        timing = model_eager(prepare, soc=soc)
    return Cost(timing.seconds, len(timing.kernels), timing.hbm_bytes)


@functools.cache
def fused_cost(model: str, sequences: int, tokens: int, soc: str) -> Cost:
    """The fused preparation, its kernels compiled for the SoC and timed by the emulator; what PyTorch runs between them counts too."""
    with torch.device("meta"):
        fused = FusedPreparation(MODELS[model]())
    fused = without_projections(fused, (sequences * tokens,), "cpu")
    hidden = torch.empty(sequences * tokens, 1, dtype=torch.bfloat16)
    cos, sin = torch.empty(sequences * tokens, fused.rope, dtype=torch.bfloat16).chunk(2, dim=-1)
    with torch.no_grad(), emulate(soc, values=False) as run:
        fused(hidden, cos, sin)
    time = run.time()
    busy = sum(kernel.seconds for kernel in time.kernels)
    return Cost(
        time.seconds,
        len(time.kernels) + len(time.aten.kernels),
        sum(kernel.hbm_in + kernel.hbm_out for kernel in time.kernels) + time.aten.hbm_bytes,
        sum(kernel.roof_share * kernel.seconds for kernel in time.kernels) / busy,
    )


def differences(attention: Any, tokens: int, soc: str) -> dict[str, float]:
    """Largest difference between the two preparations of one sequence, over the largest value, by tensor."""
    weight = attention.q_a_proj.weight
    hidden = torch.randn(tokens, attention.hidden_size, dtype=weight.dtype)
    cos, sin = RotaryCache.from_config(attention.config, tokens, dtype=weight.dtype)(torch.arange(tokens))
    watch, picked = transformers_preparation(attention, hidden[None], cos, sin)
    fused = FusedPreparation(attention)
    with torch.no_grad(), emulate(soc):
        ours = fused(hidden, cos, sin)
    rope, theirs = attention.qk_rope_head_dim, watch.seen
    pairs = {
        "query": (parted(ours.query, rope), theirs["query"][0].transpose(0, 1)),
        "k_nope": (ours.k_nope, theirs["k_nope"][0, 0]),
        "k_pe": (parted(ours.k_pe, rope), theirs["k_pe"][0, 0]),
    }
    if ours.index_key is not None:
        key = torch.cat([parted(ours.index_key[:, :rope], rope), ours.index_key[:, rope:]], dim=-1)
        pairs["index key"] = key, theirs["index_key"][0]
    if picked is not None and picked.shape[-1] < tokens:
        # Of its index query the module shows which tokens it picks, where it does not pick all.
        with torch.no_grad():
            best = index_scores(ours, attention, hidden).topk(picked.shape[-1]).indices
        # Of a causal mask's first rows fewer tokens exist than are picked: the rest is arbitrary.
        full = torch.arange(tokens) >= picked.shape[-1] - 1
        pairs["picked tokens"] = best[full].sort().values.float(), picked[0][full].sort().values.float()
    return {name: float((one.float() - other.float()).abs().max() / other.float().abs().max()) for name, (one, other) in pairs.items()}


COLUMNS = ("step", "transformers", "launches", "HBM MB", "fused", "launches", "HBM MB", "speedup", "own roof")


def time_rows(model: str, soc: str) -> Iterator[tuple[str, ...]]:
    """Before and after, for every step: the cells of COLUMNS."""
    for sequences, tokens in STEPS:
        before, after = transformers_cost(model, sequences, tokens, soc), fused_cost(model, sequences, tokens, soc)
        step = f"prefill, {tokens} tokens" if tokens > 1 else f"decode, {sequences} sequence{'s' if sequences > 1 else ''}"
        yield step, *before.cells, *after.cells, f"{before.seconds / after.seconds:.1f}×", f"{after.roof_share:.0%}"


def time_table(model: str, soc: str) -> Table:
    """For a terminal."""
    table = Table(title=f"Preparation of one {model} layer without its projections, bf16, modelled on {soc} (6 µs a launch included)")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "step" else "right")
    for row in time_rows(model, soc):
        table.add_row(*row)
    return table


def page_tables(text: str) -> str:
    """`text`, a page, with the tables between its marks as they are now."""
    lines = []
    for model in MODELS:
        for soc in SOCS:
            lines += ["", f"| {model}, {soc} | {' | '.join(COLUMNS[1:])} |", "|---" * len(COLUMNS) + "|"]
            lines += [f"| {' | '.join(row)} |" for row in time_rows(model, soc)]
    tables, marks = "\n".join(lines), r"(<!-- times: [^\n]*-->\n).*(\n<!-- end of times -->)"
    replaced, found = re.subn(marks, rf"\g<1>{tables}\n\g<2>", text, flags=re.S)
    if not found:
        raise ValueError("the page has no marks for the tables")
    return replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="glm-5")
    parser.add_argument("--page", action="store_true", help=f"rewrite the tables of {PAGE.name} instead of printing")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page_tables(PAGE.read_text()))
        return
    model = options.model
    console = Console(width=None if Console().is_terminal else 140)
    torch.manual_seed(0)
    attention: Any = MODELS[model]().to(torch.bfloat16)
    for norm in (attention.q_a_layernorm, attention.kv_a_layernorm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.2)  # ones in a new module
    console.print(f"{model}, 16 tokens, random weights, bf16: largest difference to transformers' module over the largest value")
    for name, difference in differences(attention, 16, SOCS[0]).items():
        console.print(f"  {name}: {difference:.2e}")
    for soc in SOCS:
        console.print(time_table(model, soc))


if __name__ == "__main__":
    main()
