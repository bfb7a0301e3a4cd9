from __future__ import annotations

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_mtp_input import MTPInput, fold_rotation, fused_mtp_input, mtp_input_reference
from npu_op_mtp_input.spec import SPEC
from npu_op_runtime import get_soc

EPS = {"enorm_eps": 1e-6, "hnorm_eps": 1e-5}
CONVENTIONS = ("h @ R", "h @ R.T")


class TestBattery(OperatorBattery):
    spec = SPEC


def _orthogonal(width: int, seed: int = 0) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[0].float()


def _unrotating(rotation: torch.Tensor, convention: str) -> torch.Tensor:
    """What rotates a state so that the convention turns it back."""
    return rotation.T if convention == "h @ R" else rotation


def test_eager_is_the_concatenation_of_the_models_norms():
    """Of DeepSeek-V3's multi-token prediction: eh_proj(cat(enorm(embedding), hnorm(hidden)))."""
    embedding, hidden, e_weight, h_weight = (torch.randn(*shape) for shape in ((5, 16), (5, 16), (16,), (16,)))

    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))

    expected = torch.cat([norm(embedding, e_weight, 1e-6), norm(hidden, h_weight, 1e-5)], dim=-1)
    assert torch.equal(fused_mtp_input(embedding, hidden, e_weight, h_weight, **EPS, implementation="eager"), expected)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_rotated_checkpoint_gives_what_the_unrotated_one_gives(convention):
    embedding, hidden, e_weight, h_weight = (torch.randn(*shape) for shape in ((5, 24), (5, 24), (24,), (24,)))
    rotation = _orthogonal(24)
    rotated = hidden @ _unrotating(rotation, convention)
    wanted = fused_mtp_input(embedding, hidden, e_weight, h_weight, **EPS)
    got = fused_mtp_input(embedding, rotated, e_weight, h_weight, **EPS, rotation=rotation, convention=convention)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    (other,) = set(CONVENTIONS) - {convention}
    wrong = fused_mtp_input(embedding, rotated, e_weight, h_weight, **EPS, rotation=rotation, convention=other)
    assert (wrong - wanted).abs().max() > 0.1


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("states", (1, 3))
def test_a_folded_layer_takes_rotated_states(states, convention):
    """One state, and several side by side as EAGLE's drafts take them."""
    layer, rotation = torch.nn.Linear(states * 12, 7, bias=True), _orthogonal(12)
    plain = torch.randn(5, states, 12)
    rotated = plain @ _unrotating(rotation, convention)
    folded = fold_rotation(layer.weight.detach(), rotation, convention=convention)
    got = torch.nn.functional.linear(rotated.flatten(1), folded, layer.bias)
    torch.testing.assert_close(got, layer(plain.flatten(1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_rotation_can_be_folded_behind_the_norm(convention):
    """A rotation keeps the mean square: with hnorm's weight moved into eh_proj, no step has to multiply by it (docs)."""
    embedding, hidden, e_weight, h_weight = (torch.randn(*shape) for shape in ((5, 24), (5, 24), (24,), (24,)))
    eh_proj, rotation = torch.randn(24, 48), _orthogonal(24)
    wanted = fused_mtp_input(embedding, hidden, e_weight, h_weight, **EPS) @ eh_proj.T
    folded = torch.cat([eh_proj[:, :24], fold_rotation(eh_proj[:, 24:] * h_weight, rotation, convention=convention)], dim=1)
    rotated = hidden @ _unrotating(rotation, convention)
    got = fused_mtp_input(embedding, rotated, e_weight, torch.ones(24), **EPS) @ folded.T
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_folding_keeps_the_dtype_and_rounds_once():
    weight, rotation = torch.randn(4, 8).bfloat16(), _orthogonal(8)
    folded = fold_rotation(weight, rotation, convention="h @ R")
    assert torch.equal(folded, (weight.double() @ rotation.double().T).bfloat16())


def test_module_takes_weights_and_eps_of_the_models_norms():
    enorm, hnorm, rotation = torch.nn.RMSNorm(8, eps=1e-6), torch.nn.RMSNorm(8, eps=1e-2), _orthogonal(8)
    module = MTPInput(enorm, hnorm, rotation, "h @ R.T")
    embedding, hidden = torch.randn(3, 8), torch.randn(3, 8)
    with torch.no_grad():
        got = module(embedding, hidden)
        wanted = mtp_input_reference(
            embedding, hidden, enorm.weight, hnorm.weight, enorm_eps=1e-6, hnorm_eps=1e-2, rotation=rotation, convention="h @ R.T"
        )
    torch.testing.assert_close(got, wanted)
    assert "rotation" not in module.state_dict()
    with pytest.raises(NotImplementedError, match=r"enorm_weight requires a gradient: call it under torch.no_grad\(\)"):
        module(embedding, hidden)
    with pytest.raises(ValueError, match=r"rotation must have shape \(8, 8\) \(got \(4, 4\)\)"):
        MTPInput(enorm, hnorm, _orthogonal(4), "h @ R")
    biased = torch.nn.RMSNorm(8, eps=1e-6)
    biased.bias = torch.nn.Parameter(torch.ones(8))
    with pytest.raises(TypeError, match=r"hnorm must have no bias \(got RMSNorm"):
        MTPInput(enorm, biased)
    with pytest.raises(TypeError, match=r"enorm must be an RMSNorm, which subtracts no mean \(got LayerNorm"):
        MTPInput(torch.nn.LayerNorm(8), hnorm)
    with pytest.raises(TypeError, match=r"hnorm must have a float variance_epsilon or eps \(got RMSNorm"):
        MTPInput(enorm, torch.nn.RMSNorm(8))


@pytest.mark.skipif(all(mode.kind != "emulator" for mode in available_modes()), reason="needs the emulator")
@pytest.mark.parametrize("soc", ("Ascend910B3", "Ascend910B4"))
@pytest.mark.parametrize("width", (7168, 6144))  # DeepSeek-V3, GLM-5
def test_a_prefill_is_at_the_roof(soc, width):
    """Modelled: what its least bytes need, of 4096 tokens, over the time of the kernel."""
    from npu_op_lab.emulator import emulate, gm_bandwidth

    embedding, hidden, e_weight, h_weight = (torch.empty(*shape, width, dtype=torch.bfloat16) for shape in ((4096,), (4096,), (), ()))
    with emulate(soc, values=False) as run:
        fused_mtp_input(embedding, hidden, e_weight, h_weight, **EPS)
    (kernel,) = run.kernels
    assert (4 * hidden.nbytes + 2 * e_weight.nbytes) / gm_bandwidth(get_soc(soc), "measured") > 0.85 * kernel.seconds


_X, _W, _R = torch.ones(3, 8), torch.ones(8), torch.ones(8, 8)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], _X, _W, _W), {}, TypeError, r"embedding must be a torch.Tensor \(got list\)"),
        ((_X.double(), _X, _W, _W), {}, TypeError, r"embedding must have dtype .* \(got float64\)"),
        ((_X[None], _X, _W, _W), {}, ValueError, r"embedding must have shape \(tokens, hidden_size\) \(got \(1, 3, 8\)\)"),
        ((_X, _X.half(), _W, _W), {}, TypeError, r"hidden must have dtype float32 \(got float16\)"),
        ((_X, _X[1:], _W, _W), {}, ValueError, r"hidden must have shape \(3, 8\) \(got \(2, 8\)\)"),
        ((_X, _X, _W[1:], _W), {}, ValueError, r"enorm_weight must have shape \(8,\) \(got \(7,\)\)"),
        ((_X, _X, _W, None), {}, TypeError, r"hnorm_weight must be a torch.Tensor \(got NoneType\)"),
        ((_X, _X, _W, _W.to("meta")), {}, ValueError, r"hnorm_weight must be on cpu like embedding \(got meta\)"),
        ((_X, _X, _W, _W), {"enorm_eps": None}, TypeError, r"enorm_eps must be a number \(got None\)"),
        ((_X, _X, _W, _W), {"hnorm_eps": "1e-6"}, TypeError, r"hnorm_eps must be a number \(got '1e-6'\)"),
        ((_X, _X, _W, _W), {"rotation": _R}, ValueError, r"convention must be one of 'h @ R', 'h @ R.T' \(got None\)"),
        ((_X, _X, _W, _W), {"convention": "h @ R"}, ValueError, r"convention must be None without a rotation \(got 'h @ R'\)"),
        ((_X, _X, _W, _W), {"rotation": _R[1:], "convention": "h @ R"}, ValueError, r"rotation must have shape \(8, 8\) \(got \(7, 8\)\)"),
        ((_X, _X, _W, _W), {"rotation": _R.half(), "convention": "h @ R"}, TypeError, r"rotation must have dtype float32 \(got float16\)"),
        ((_X, _X, _W, _W), {"implementation": "vendor"}, NotImplementedError, "torch_npu has no op that normalises two tensors"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        fused_mtp_input(*arguments, **{**EPS, **options})


@pytest.mark.parametrize(
    ("weight", "rotation", "convention", "error", "message"),
    (
        (_W, _R, "h @ R", ValueError, r"weight must have two dimensions \(got shape \(8,\)\)"),
        (_R, _R[1:], "h @ R", ValueError, r"rotation must be square \(got shape \(7, 8\)\)"),
        (torch.ones(4, 12), _R, "h @ R", ValueError, r"weight must have a multiple of 8 columns, the width of rotation \(got 12\)"),
        (_R, _R, "R @ h", ValueError, r"convention must be one of 'h @ R', 'h @ R.T' \(got 'R @ h'\)"),
        (_R, _R.int(), "h @ R", TypeError, r"rotation must have dtype .* \(got int32\)"),
    ),
)
def test_what_cannot_be_folded_is_named(weight, rotation, convention, error, message):
    with pytest.raises(error, match=message):
        fold_rotation(weight, rotation, convention=convention)
