"""TRL's own GRPOTrainer._compute_loss on a small Llama, and our loss on that model's hidden states: same loss, gradients and metrics."""

from __future__ import annotations

import types
from collections import defaultdict
from contextlib import nullcontext

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from npu_op_grpo_loss import fused_linear_grpo_loss

PROMPT, LENGTH, VOCABULARY = 5, 11, 97


class OneProcess:
    """What _compute_loss asks of an accelerator when there is one process."""

    num_processes = 1
    is_main_process = True
    sync_gradients = True

    def autocast(self):
        return nullcontext()

    def gather(self, tensor):
        return tensor

    def reduce(self, tensor, reduction):
        return tensor


class Trainer:
    """The attributes that _compute_loss reads, without datasets, rewards and generation; every method is TRL's."""

    _get_per_token_logps_and_entropies = GRPOTrainer._get_per_token_logps_and_entropies
    _compute_loss = GRPOTrainer._compute_loss
    aux_loss_enabled = False
    _entropy_bonus_enabled = False
    current_gradient_accumulation_steps = 1

    def __init__(self, model, args, corrected):
        self.model, self.args, self.accelerator = model, args, OneProcess()
        self.use_vllm = self.vllm_importance_sampling_correction = corrected
        for name in (
            *("beta", "loss_type", "epsilon_low", "epsilon_high", "importance_sampling_level", "max_completion_length"),
            *("top_entropy_quantile", "off_policy_mask_threshold"),
        ):
            setattr(self, name, getattr(args, "epsilon" if name == "epsilon_low" else name))
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data.normal_()
    add_fused_lm_head(model, temperature=0.8, outputs=("log_probs", "entropy"))
    return model.train()


def batch_of(model, level):
    generator = torch.Generator().manual_seed(1)
    sequences = 4
    prompt = torch.randint(0, VOCABULARY, (sequences, PROMPT), generator=generator)
    completion = torch.randint(0, VOCABULARY, (sequences, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [3], [1]])).long()
    ids = torch.cat((prompt, completion), 1)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, PROMPT - 1 : -1] / 0.8
    logps = logits.log_softmax(-1).gather(-1, completion.unsqueeze(-1)).squeeze(-1)
    # Clipped from above, from below, not, and by delta.
    choices = torch.tensor([0.6, -0.6, 0.05, 0.6])
    log_ratio = choices[torch.randint(0, 4, (sequences, LENGTH), generator=generator)] if level == "token" else choices.unsqueeze(1)
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": mask,
        "advantages": torch.tensor([1.0, -0.7, 0.4, -1.5]),
        "old_per_token_logps": logps - log_ratio,
        "ref_per_token_logps": logps + 0.3 * torch.randn(logps.shape, generator=generator),
        "importance_sampling_ratio": 1 + 0.2 * torch.randn(logps.shape, generator=generator),
        "num_items_in_batch": torch.tensor(37.0),
    }


@pytest.mark.parametrize("corrected", (False, True))
@pytest.mark.parametrize("on_policy", (False, True))
@pytest.mark.parametrize("level", ("token", "sequence"))
@pytest.mark.parametrize("loss_type", ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"))
@pytest.mark.filterwarnings("ignore")  # TRL advises against some of the combinations
def test_loss_gradients_and_metrics_are_those_of_trl(model, loss_type, level, on_policy, corrected):
    args = GRPOConfig(
        use_cpu=True, bf16=False, report_to="none", beta=0.04, epsilon=0.2, epsilon_high=1.3 if loss_type == "cispo" else 0.28, delta=1.5,
        loss_type=loss_type, importance_sampling_level=level, max_completion_length=40, steps_per_generation=1,
        use_bias_correction_kl=corrected,
    )  # fmt: skip
    inputs = batch_of(model, level)
    if on_policy:
        del inputs["old_per_token_logps"]
    trainer = Trainer(model, args, corrected=not on_policy)
    model.zero_grad()
    expected = trainer._compute_loss(model, inputs)
    expected.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.zero_grad()
    ids = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1)
    hidden = model.model(input_ids=ids).last_hidden_state[:, PROMPT - 1 : -1]
    result = fused_linear_grpo_loss(
        hidden, model.lm_head.weight, inputs["completion_ids"], inputs["completion_mask"], inputs["advantages"],
        ref_logps=inputs["ref_per_token_logps"], old_logps=inputs.get("old_per_token_logps"),
        vllm_is_ratio=None if on_policy else inputs["importance_sampling_ratio"],
        beta=args.beta, epsilon_low=args.epsilon, epsilon_high=args.epsilon_high, delta=args.delta, loss_type=loss_type,
        importance_sampling_level=level, temperature=0.8, max_completion_length=40, use_bias_correction_kl=corrected,
        num_items_in_batch=inputs["num_items_in_batch"],
    )  # fmt: skip
    result.loss.backward()

    torch.testing.assert_close(result.loss, expected.detach(), rtol=1e-5, atol=1e-6)
    for name, parameter in model.named_parameters():
        # fp32 sums in another order: errors are as large as the largest terms.
        within = 1e-6 * max(1.0, gradients[name].abs().max().item())
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=within, msg=lambda text, name=name: f"{name}: {text}")
    logged = trainer._metrics["train"]
    assert result.kl is not None
    assert result.kl.item() == pytest.approx(logged["kl"][0], rel=1e-5)
    if loss_type == "cispo":
        assert result.clip_high.item() == pytest.approx(logged["cispo_clip_ratio"][0])
    elif loss_type != "sapo":
        for ours, theirs in (("clip_low", "low_mean"), ("clip_high", "high_mean"), ("clip_region", "region_mean")):
            assert getattr(result, ours).item() == pytest.approx(logged[f"clip_ratio/{theirs}"][0])
    if not on_policy and loss_type in ("grpo", "cispo"):
        assert result.clip_region.item() > 0, "the case clips nothing"


def test_the_stub_is_what_trl_reads():
    """Were _compute_loss to read what the stub lacks, it would fail above; here, that its methods are TRL's own."""
    assert isinstance(Trainer._compute_loss, types.FunctionType)
    assert Trainer._compute_loss is GRPOTrainer._compute_loss
