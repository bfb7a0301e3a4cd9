"""The example of GLM-5's attention preparation: values on small models, launches, bytes and modelled time at real widths."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config, GlmMoeDsaConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaAttention

FILE = Path(__file__).parents[2] / "docs/examples/glm5_attention.py"
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32,
    "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 24, "num_hidden_layers": 2, "max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "mscale_all_dim": 1.0}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("glm5_attention", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def small(model: str) -> Any:
    torch.manual_seed(0)
    if model == "glm-5":
        config = GlmMoeDsaConfig(**SIZES, index_n_heads=4, index_head_dim=32, index_topk=4)
        attention: Any = GlmMoeDsaAttention(config, 0)
    else:
        attention = DeepseekV3Attention(DeepseekV3Config(**SIZES, rope_parameters=YARN), 0)
    for norm in (attention.q_a_layernorm, attention.kv_a_layernorm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.2)
    attention.kv_a_layernorm.variance_epsilon = 1e-2  # an eps for each
    return attention


@pytest.mark.parametrize("model", ("glm-5", "deepseek-v3"))
def test_fused_kernels_prepare_what_transformers_prepares(example, model):
    """fp32, the kernels as compiled for an Ascend 910B4; the tokens that the indexer picks are the same."""
    found = example.differences(small(model), 19, "Ascend910B4")
    assert set(found) == {"query", "k_nope", "k_pe", *(("index key", "picked tokens") if model == "glm-5" else ())}
    assert all(difference < 2e-6 for difference in found.values()), found
    assert found.get("picked tokens", 0.0) == 0.0


def test_a_wrong_preparation_shows(example, monkeypatch):
    """Half layout instead of interleaved pairs."""
    fused = example.fused_rope_qk_mqa
    monkeypatch.setattr(example, "fused_rope_qk_mqa", lambda *args, interleaved, **options: fused(*args, interleaved=False, **options))
    found = example.differences(small("glm-5"), 19, "Ascend910B4")
    assert min(found[name] for name in ("query", "k_pe", "index key", "picked tokens")) > 1e-2


@pytest.mark.parametrize(("model", "launches"), (("glm-5", 4), ("deepseek-v3", 2)))
@pytest.mark.parametrize("soc", ("Ascend910B3", "Ascend910B4"))
def test_a_decode_step_takes_less_than_half(example, model, launches, soc):
    """Real widths, a launch cost for each kernel of both."""
    for sequences in (1, 64):
        before, after = example.transformers_cost(model, sequences, 1, soc), example.fused_cost(model, sequences, 1, soc)
        assert after.launches == launches
        assert before.launches > 5 * launches
        assert after.hbm_bytes < before.hbm_bytes
        assert before.seconds > 2 * after.seconds


@pytest.mark.parametrize("model", ("glm-5", "deepseek-v3"))
@pytest.mark.parametrize("soc", ("Ascend910B3", "Ascend910B4"))
def test_a_prefill_is_at_the_roof(example, model, soc):
    before, after = example.transformers_cost(model, 1, 4096, soc), example.fused_cost(model, 1, 4096, soc)
    assert after.roof_share > 0.85
    assert before.seconds > 2 * after.seconds
    assert after.hbm_bytes < before.hbm_bytes


@pytest.mark.parametrize("model", ("glm-5", "deepseek-v3"))
def test_values_at_the_real_widths(example, model):
    torch.manual_seed(0)
    attention = example.MODELS[model]().to(torch.bfloat16)
    for norm in (attention.q_a_layernorm, attention.kv_a_layernorm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.2)
    found = example.differences(attention, 16, "Ascend910B4")
    assert set(found) >= {"query", "k_nope", "k_pe"}
    assert all(difference < 2e-2 for difference in found.values()), found


def test_the_page_shows_what_the_example_models_now(example):
    text = example.PAGE.read_text()
    assert text == example.page_tables(text), "run: python docs/examples/glm5_attention.py --page"
