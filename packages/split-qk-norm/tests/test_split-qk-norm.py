from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import Mode, available_modes
from npu_op_runtime import get_soc
from npu_op_split_qk_norm import SplitQKNorm, fused_split_qk_norm, split_qk_norm_reference
from npu_op_split_qk_norm.spec import SPEC

WIDTHS = (1536, 512, 64)
RANKS = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_dim": 64}
EPS = {"q_eps": 1e-6, "kv_eps": 1e-5}
# CUDA divides and takes roots to two units in the last place.
IEEE = [mode for mode in available_modes() if mode.executes and mode.kind != "cuda"]


class TestBattery(OperatorBattery):
    spec = SPEC


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """transformers' DeepseekV3RMSNorm, written out."""
    x32 = x.to(torch.float32)
    return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_eager_is_split_and_the_norms_of_transformers(dtype):
    fused, q_weight, kv_weight = (torch.randn(*shape, dtype=dtype) for shape in ((9, sum(WIDTHS)), (1536,), (512,)))
    q, kv, k_pe = fused.split(WIDTHS, dim=-1)
    expected = _norm(q, q_weight, 1e-6), _norm(kv, kv_weight, 1e-5).unsqueeze(1), k_pe.unsqueeze(1)
    outputs = fused_split_qk_norm(fused, q_weight, kv_weight, **RANKS, **EPS, implementation="eager")
    for got, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("mode", IEEE, ids=lambda mode: mode.name)
def test_fp32_is_the_models_bit_for_bit_where_the_sum_of_squares_is_exact(mode: Mode):
    """Small integers: whatever the order of the sum, it is the same number, and so is all that follows."""
    generator = torch.Generator().manual_seed(0)
    fused = torch.randint(-8, 9, (19, sum(WIDTHS)), generator=generator).float()
    q_weight, kv_weight = torch.randn(1536, generator=generator), torch.randn(512, generator=generator)
    with mode.enter():
        outputs = fused_split_qk_norm(fused, q_weight, kv_weight, **RANKS, **EPS)
    for got, wanted in zip(outputs, split_qk_norm_reference(fused, q_weight, kv_weight, **RANKS, **EPS), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("mode", IEEE, ids=lambda mode: mode.name)
def test_fp32_differs_from_the_model_by_the_order_of_one_sum_alone(mode: Mode):
    """Given the reciprocal root, which a column of ones shows, every bit follows; it is right to 8 half units of its last place."""
    generator = torch.Generator().manual_seed(1)
    fused = torch.randn(19, sum(WIDTHS), generator=generator)
    weights = [torch.randn(width, generator=generator) for width in WIDTHS[:2]]
    fused[:, [0, 1536]] = 1.0
    for weight in weights:
        weight[0] = 1.0
    with mode.enter():
        q_lora, k_nope, k_pe = fused_split_qk_norm(fused, *weights, **RANKS, **EPS)
    q, kv, rope = fused.split(WIDTHS, dim=-1)
    assert torch.equal(k_pe[:, 0], rope)
    for x, out, weight, eps in ((q, q_lora, weights[0], 1e-6), (kv, k_nope[:, 0], weights[1], 1e-5)):
        rstd = out[:, :1]
        assert torch.equal(out, weight * (x * rstd))
        exact = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps)
        assert ((rstd.double() / exact - 1).abs() <= 8 * 2**-24).all()


def test_a_value_of_its_own_for_each_eps():
    """Case 32, without the oracle: zeros stay zeros, and inputs far below an eps are scaled by its root alone."""
    fused = torch.full((3, 12), 1e-8)
    q_lora, k_nope, _ = fused_split_qk_norm(
        fused, torch.ones(4), torch.ones(8), q_lora_rank=4, kv_lora_rank=8, qk_rope_dim=0, q_eps=1e-6, kv_eps=1e-2
    )
    torch.testing.assert_close(q_lora, torch.full((3, 4), 1e-5))
    torch.testing.assert_close(k_nope, torch.full((3, 1, 8), 1e-7))


class _ModelNorm(torch.nn.Module):
    """As in transformers: no bias attribute, the eps under another name."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))
        self.variance_epsilon = eps


def test_module_takes_weight_bias_and_eps_of_the_models_norms():
    with_bias = torch.nn.RMSNorm(8, eps=1e-2)
    with_bias.bias = torch.nn.Parameter(torch.randn(8))
    split = SplitQKNorm(_ModelNorm(16, 1e-6), with_bias, 4)
    fused = torch.randn(5, 28)
    with torch.no_grad():
        got = split(fused)
        wanted = split_qk_norm_reference(
            fused, split.q_norm.weight, with_bias.weight, q_lora_rank=16, kv_lora_rank=8, qk_rope_dim=4,
            q_eps=1e-6, kv_eps=1e-2, kv_bias=with_bias.bias,
        )  # fmt: skip
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(NotImplementedError, match=r"q_weight requires a gradient: call it under torch.no_grad\(\)"):
        split(fused)


def test_module_refuses_what_is_no_norm_at_construction():
    with pytest.raises(TypeError, match=r"q_norm must have a weight of one dimension \(got Identity\(\)\)"):
        SplitQKNorm(torch.nn.Identity(), _ModelNorm(8, 1e-6), 4)
    with pytest.raises(TypeError, match=r"kv_norm must have a float variance_epsilon or eps \(got RMSNorm"):
        SplitQKNorm(_ModelNorm(8, 1e-6), torch.nn.RMSNorm(8), 4)


@pytest.mark.skipif(all(mode.kind != "emulator" for mode in available_modes()), reason="needs the emulator")
@pytest.mark.parametrize("soc", ("Ascend910B3", "Ascend910B4"))
@pytest.mark.parametrize("q_lora_rank", (1536, 2048))  # DeepSeek-V3, GLM-5
def test_a_prefill_is_at_the_roof(soc, q_lora_rank):
    """Modelled: what its least bytes need, of 4096 tokens, over the time of the kernel."""
    from npu_op_lab.emulator import emulate, gm_bandwidth

    widths, tokens = (q_lora_rank, 512, 64), 4096
    fused, q_weight, kv_weight = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((tokens, sum(widths)), widths[:1], widths[1:2]))
    with emulate(soc, values=False) as run:
        fused_split_qk_norm(fused, q_weight, kv_weight, **{**RANKS, "q_lora_rank": q_lora_rank}, **EPS)
    (kernel,) = run.kernels
    assert (2 * fused.nbytes + q_weight.nbytes + kv_weight.nbytes) / gm_bandwidth(get_soc(soc), "measured") > 0.85 * kernel.seconds


_X, _W4, _W2 = torch.ones(3, 8), torch.ones(4), torch.ones(2)
_CALL = {"q_lora_rank": 4, "kv_lora_rank": 2, "qk_rope_dim": 2, **EPS}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], _W4, _W2), {}, TypeError, r"fused_qkv_a must be a torch.Tensor \(got list\)"),
        ((_X.double(), _W4, _W2), {}, TypeError, r"fused_qkv_a must have dtype .* \(got float64\)"),
        ((_X[None], _W4, _W2), {}, ValueError, r"fused_qkv_a must have shape \(tokens, 8\), .* \(got \(1, 3, 8\)\)"),
        ((_X[:, 1:], _W4, _W2), {}, ValueError, r"fused_qkv_a must have shape \(tokens, 8\), .* \(got \(3, 7\)\)"),
        ((_X, _W2, _W2), {}, ValueError, r"q_weight must have shape \(4,\) \(got \(2,\)\)"),
        ((_X, _W4, None), {}, TypeError, r"kv_weight must be a torch.Tensor \(got NoneType\)"),
        ((_X, _W4, _W2.int()), {}, TypeError, r"kv_weight must have dtype .* \(got int32\)"),
        ((_X, _W4, _W2), {"kv_bias": _W4}, ValueError, r"kv_bias must have shape \(2,\) \(got \(4,\)\)"),
        ((_X, _W4, _W2), {"q_bias": _W4.to("meta")}, ValueError, r"q_bias must be on cpu like fused_qkv_a \(got meta\)"),
        ((_X, _W4, _W2), {"q_eps": None}, TypeError, r"q_eps must be a number \(got None\)"),
        ((_X, _W4, _W2), {"kv_eps": "1e-6"}, TypeError, r"kv_eps must be a number \(got '1e-6'\)"),
        ((_X, _W4, _W2), {"q_lora_rank": 0}, ValueError, r"q_lora_rank must be at least 1 \(got 0\)"),
        ((_X, _W4, _W2), {"qk_rope_dim": 2.0}, TypeError, r"qk_rope_dim must be an int \(got 2.0\)"),
        ((_X, _W4, _W2), {"implementation": "vendor"}, NotImplementedError, "torch_npu has no op that splits and normalises"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        fused_split_qk_norm(*arguments, **{**_CALL, **options})
