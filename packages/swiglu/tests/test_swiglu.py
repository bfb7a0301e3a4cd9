from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_lab.inputs import Inputs
from npu_op_runtime.gated_mlp import WEIGHTS, whole_mlp
from npu_op_runtime.spec import MODELS
from npu_op_swiglu import SwiGLUMLP, swiglu, swiglu_packed, swiglu_packed_reference, swiglu_reference
from npu_op_swiglu.spec import SPEC


class TestBattery(OperatorBattery):
    spec = SPEC


def test_packed_is_gate_then_up():
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    assert torch.equal(swiglu_packed_reference(torch.cat([gate, up], dim=-1)), swiglu_reference(gate, up))


def test_mlp_is_llamas():
    """The weights of transformers' LlamaMLP load into ours, and give its outputs and gradients."""
    theirs = LlamaMLP(LlamaConfig(hidden_size=16, intermediate_size=40, num_attention_heads=2))
    ours, x = SwiGLUMLP(16, 40), torch.randn(3, 16)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))
    gradients = [torch.autograd.grad(mlp(x).square().sum(), mlp.parameters()) for mlp in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_the_benchmark_of_the_whole_mlp_is_llamas():
    case = replace(whole_mlp(SPEC.bench_case(MODELS["llama_3_8b"], 5), SwiGLUMLP), dims={"T": 5, "H": 24, "I": 64}, dtype="float32")
    inputs = SPEC.make_inputs(case, Inputs())
    theirs = LlamaMLP(LlamaConfig(hidden_size=24, intermediate_size=64, num_attention_heads=2))
    theirs.load_state_dict({name.replace("_weight", "_proj.weight"): inputs[name] for name in WEIGHTS})
    for function in (SPEC.function, SPEC.reference):
        torch.testing.assert_close(function(**inputs), theirs(inputs["x"]))


def test_mlp_scales_both_sides():
    mlp, x = SwiGLUMLP(16, 40, gate_multiplier=0.5, down_multiplier=3.0), torch.randn(3, 16)
    expected = 3.0 * mlp.down_proj(torch.nn.functional.silu(0.5 * mlp.gate_proj(x)) * mlp.up_proj(x))
    torch.testing.assert_close(mlp(x), expected)


def test_inplace_backward_reuses_the_buffers():
    leaves = [torch.randn(4, 32).requires_grad_() for _ in range(2)]
    wanted = torch.autograd.grad(swiglu(*leaves).sum(), leaves)
    doubled = [leaf * 1.0 for leaf in leaves]
    pointers = [t.data_ptr() for t in doubled]
    seen = []
    for t in doubled:
        t.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    gradients = torch.autograd.grad(swiglu(*doubled, inplace_backward=True).sum(), leaves)
    assert sorted(seen) == sorted(pointers)
    for gradient, expected in zip(gradients, wanted):
        torch.testing.assert_close(gradient, expected)


def test_inplace_backward_declares_its_writes():
    schema = torch.ops.npu_op_swiglu.backward_.default._schema
    assert [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write] == ["gate", "up"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    (
        (([1.0], torch.ones(1)), TypeError, r"gate must be a torch.Tensor \(got list\)"),
        ((torch.ones(2), None), TypeError, r"up must be a torch.Tensor \(got NoneType\)"),
        ((torch.ones(2, dtype=torch.int8), torch.ones(2)), TypeError, r"gate must have dtype .* \(got int8\)"),
        ((torch.ones(2), torch.ones(2, dtype=torch.float16)), TypeError, r"up must have dtype float32 \(got float16\)"),
        ((torch.ones(2, 4), torch.ones(4)), ValueError, r"up must have shape \(2, 4\) \(got \(4,\)\)"),
        ((torch.ones(2), torch.ones(2, device="meta")), ValueError, r"up must be on cpu like gate \(got meta\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        swiglu(*arguments)


def test_packed_needs_two_halves():
    with pytest.raises(ValueError, match=r"x must have an even last dimension, gate \| up \(got shape \(2, 5\)\)"):
        swiglu_packed(torch.ones(2, 5))


def test_vendor_says_why_it_cannot_run():
    with pytest.raises(NotImplementedError, match=r"torch_npu.npu_swiglu takes gate \| up in one tensor; use swiglu_packed"):
        swiglu(torch.ones(2), torch.ones(2), implementation="vendor")
    with pytest.raises(NotImplementedError, match=r"it needs an NPU tensor \(got cpu\)"):
        swiglu_packed(torch.ones(2), implementation="vendor")


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
@pytest.mark.parametrize("mode", [mode for mode in available_modes() if mode.kernels and mode.executes], ids=lambda mode: mode.name)
def test_gradients_of_extreme_gates_are_nan_where_eagers_are(mode, dtype):
    """Where exp overflows, and where the cube of the gate does."""
    extremes = (-math.inf, -1e13, -100.0, -20.0, 20.0, 100.0, 1e13, math.inf, math.nan)
    leaves = [torch.tensor(values, dtype=dtype, device=mode.device).requires_grad_() for values in (extremes, (2.0,) * len(extremes))]
    expected = swiglu_reference(*leaves)
    wanted = torch.autograd.grad(expected, leaves, torch.ones_like(expected))
    with mode.enter():
        got = torch.autograd.grad(swiglu(*leaves), leaves, torch.ones_like(expected))
    torch.testing.assert_close(got, wanted, equal_nan=True)
