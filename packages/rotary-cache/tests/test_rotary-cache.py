from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.capture import capture
from npu_op_lab.execution import available_modes
from npu_op_rotary_cache import RotaryCache, gather_cos_sin, gather_cos_sin_reference
from npu_op_rotary_cache.spec import SPEC

DEVICES = ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))
YARN = {"rope_type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}


class TestBattery(OperatorBattery):
    spec = SPEC


def _config(parameters: dict[str, object]) -> DeepseekV3Config:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "qk_rope_head_dim": 16, "max_position_embeddings": 512}
    return DeepseekV3Config(**sizes, rope_parameters={"rope_theta": 10000.0, **parameters})


@pytest.mark.parametrize(
    "parameters",
    ({"rope_type": "default"}, {**YARN, "original_max_position_embeddings": 64}, {"rope_type": "linear", "factor": 4.0}),
    ids=("default", "yarn", "linear"),
)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_angles_are_those_of_transformers_bit_for_bit(parameters, dtype):
    config = _config(parameters)
    positions = torch.tensor([0, 1, 7, 300, 511])
    cos, sin = RotaryCache.from_config(config, dtype=dtype)(positions)
    theirs = DeepseekV3RotaryEmbedding(config)(torch.empty(0, dtype=dtype), positions[None])
    for ours, repeated in zip((cos, sin), theirs, strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, repeated[0, :, : ours.shape[1]])
        assert torch.equal(ours, repeated[0, :, ours.shape[1] :])


@pytest.mark.parametrize("rope_type", ("dynamic", "longrope"))
def test_angles_that_depend_on_the_length_are_refused(rope_type):
    class Config:
        rope_parameters = {"rope_type": rope_type, "rope_theta": 10000.0}

    with pytest.raises(NotImplementedError, match=f"rope type '{rope_type}' changes its angles with the length of the sequence"):
        RotaryCache.from_config(Config())


class _Config:
    head_dim, max_position_embeddings, rope_parameters = 8, 16, {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("config", "rows", "error", "message"),
    (
        (None, None, TypeError, r"config must have rope_parameters with rope_type and rope_theta, .* \(got None\)"),
        (type("Old", (), {"rope_theta": 10000.0}), None, TypeError, r"config must have rope_parameters .* \(got None\)"),
        (
            type("New", (_Config,), {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1.0}}),
            None,
            ValueError,
            "rope_type must be one of",
        ),
        (_Config, 0, ValueError, r"max_positions must be at least 1 \(got 0\)"),
    ),
)
def test_a_config_without_a_table_is_named(config, rows, error, message):
    with pytest.raises(error, match=message):
        RotaryCache.from_config(config, rows)


def test_rows_beyond_ub_are_refused_by_name():
    for mode in available_modes():
        if mode.kind == "emulator":
            with mode.enter(), pytest.raises(ValueError, match=r"cache must have rows of 98304 bytes at most .* \(got 240000\)"):
                gather_cos_sin(torch.empty(4, 60_000), torch.tensor([1]))


@pytest.mark.parametrize("device", DEVICES)
def test_a_captured_step_turns_by_the_positions_of_its_replay(device):
    """Captured with dummy positions, warmed up as engines do, then replayed: the angles are those of the positions of each replay."""
    cache = RotaryCache(1.0 / 100.0 ** (torch.arange(0, 16, 2, device=device) / 16), 512)
    positions = torch.zeros(4, dtype=torch.int64, device=device)
    q = torch.randn(4, 3, 16, device=device)

    def step() -> list[torch.Tensor]:
        """Three layers that share what was gathered once."""
        cos, sin = (angle[:, None] for angle in cache(positions))
        a, b = q.chunk(2, dim=-1)
        return [torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1) * (layer + 1) for layer in range(3)]

    outputs, replay = capture(step, device)
    for fresh in ([5, 6, 7, 8], [400, 2, 511, 9]):
        positions.copy_(torch.tensor(fresh))
        replay()
        for got, wanted in zip(outputs, step(), strict=True):
            assert torch.equal(got, wanted)
        turned = torch.complex(*outputs[0].chunk(2, dim=-1)) / torch.complex(*q.chunk(2, dim=-1))
        angles = torch.tensor(fresh, device=device)[:, None] / 100.0 ** (torch.arange(0, 16, 2, device=device) / 16)
        torch.testing.assert_close(turned, torch.polar(torch.ones_like(angles), angles)[:, None].expand_as(turned), rtol=1e-3, atol=1e-4)


def test_nothing_is_kept_from_a_call():
    cache = RotaryCache(torch.tensor([1.0, 0.1]), 32)
    state, table = dict(vars(cache)), cache.cos_sin.clone()
    first = [tensor.clone() for tensor in cache(torch.tensor([1, 2]))]
    cache(torch.tensor([30, 31]))
    assert vars(cache) == state
    assert torch.equal(cache.cos_sin, table)
    for ours, again in zip(first, cache(torch.tensor([1, 2])), strict=True):
        assert torch.equal(ours, again)
    assert not cache.state_dict()


def test_positions_outside_are_clamped_on_the_device_and_asserted_in_debug_mode():
    cache = RotaryCache(torch.tensor([1.0]), 4)
    for ours, wanted in zip(cache(torch.tensor([-3, 9])), cache(torch.tensor([0, 3])), strict=True):
        assert torch.equal(ours, wanted)
    code = (
        "import torch; from npu_op_rotary_cache import RotaryCache; cache = RotaryCache(torch.tensor([1.0]), 4);"
        "cache(torch.tensor([0, 3])); cache(torch.tensor([4]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"NPU_OP_DEBUG": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "positions must be in [0, 4), the rows of cache" in done.stderr


@pytest.mark.skipif(all(mode.kind != "emulator" for mode in available_modes()), reason="needs the emulator")
@pytest.mark.parametrize("soc", ("Ascend910B3", "Ascend910B4"))
@pytest.mark.parametrize(("tokens", "speedup"), ((1, 1.6), (64, 1.6), (4096, 1.3), (16384, 1.05)))
def test_it_takes_less_time_than_eager_at_full_bandwidth(soc, tokens, speedup):
    """Modelled, both with their launches: one beside `clamp` and `index_select`."""
    from npu_op_lab.emulator import emulate, model_eager

    call = torch.empty(4096, 64), torch.zeros(tokens, dtype=torch.int64)
    with emulate(soc, values=False) as run:
        gather_cos_sin(*call)
    eager = model_eager(gather_cos_sin_reference, *call, soc=soc)
    assert len(run.kernels) == 1
    assert eager.seconds > speedup * run.seconds


def test_the_function_takes_module_or_table():
    cache, positions = RotaryCache(torch.tensor([1.0, 0.5]), 8), torch.tensor([3, 0, 3])
    for ours, theirs in zip(gather_cos_sin(cache, positions), gather_cos_sin(cache.cos_sin, positions), strict=True):
        assert torch.equal(ours, theirs)


_T, _P = torch.ones(8, 4), torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0], _P), {}, TypeError, r"cache must be a torch.Tensor \(got list\)"),
        ((_T.double(), _P), {}, TypeError, r"cache must have dtype .* \(got float64\)"),
        ((_T[:, :3], _P), {}, ValueError, r"cache must have shape \(rows, 2 \* pairs\), .* \(got \(8, 3\)\)"),
        ((_T[:0], _P), {}, ValueError, r"cache must have shape \(rows, 2 \* pairs\), .* \(got \(0, 4\)\)"),
        ((_T.T, _P), {}, ValueError, r"cache must have a contiguous last dimension, .* \(got \(1, 4\)\)"),
        ((_T, [1, 2]), {}, TypeError, r"positions must be a torch.Tensor \(got list\)"),
        ((_T, _P.float()), {}, TypeError, r"positions must have dtype int32 or int64 \(got float32\)"),
        ((_T, _P[None]), {}, ValueError, r"positions must have shape \(tokens,\) \(got \(1, 2\)\)"),
        ((_T, _P.to("meta")), {}, ValueError, r"positions must be on cpu like cache \(got meta\)"),
        ((_T, _P), {"implementation": "vendor"}, NotImplementedError, "PyTorch's own, which is 'eager'"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        gather_cos_sin(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        ((None, 8), {}, TypeError, r"inv_freq must be a torch.Tensor \(got NoneType\)"),
        ((torch.ones(2, 2), 8), {}, ValueError, r"inv_freq must have shape \(pairs,\) \(got \(2, 2\)\)"),
        ((torch.ones(2), 0), {}, ValueError, r"max_positions must be at least 1 \(got 0\)"),
        ((torch.ones(2), 8), {"attention_scaling": None}, TypeError, r"attention_scaling must be a number \(got None\)"),
        ((torch.ones(2), 8), {"dtype": torch.int32}, ValueError, r"dtype must be one of .* \(got torch.int32\)"),
    ),
)
def test_wrong_arguments_of_the_module_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        RotaryCache(*arguments, **options)
