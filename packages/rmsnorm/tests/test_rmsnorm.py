from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from npu_op_lab.battery import OperatorBattery
from npu_op_lab.execution import available_modes
from npu_op_lab.gradients import gradients_of
from npu_op_rmsnorm import GemmaRMSNorm, RMSNorm, rms_norm, rms_norm_reference
from npu_op_rmsnorm.spec import SPEC

KERNEL_MODES = [mode for mode in available_modes() if mode.executes and mode.kernels]


class TestBattery(OperatorBattery):
    spec = SPEC


def test_llama_casting_is_that_of_transformers():
    """LlamaRMSNorm, written out: fp32 statistics, cast to the input's dtype, then the weight."""
    x, weight = torch.randn(5, 64, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)
    x32 = x.to(torch.float32)
    expected = weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
    assert torch.equal(rms_norm_reference(x, weight), expected)


def test_gemma_casting_rounds_once():
    """GemmaRMSNorm, written out: everything in fp32, 1 + weight, one last cast."""
    x, weight = torch.randn(5, 64, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)
    x32 = x.float()
    expected = (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + weight.float())).to(torch.bfloat16)
    assert torch.equal(rms_norm_reference(x, weight, offset=1.0, casting="gemma"), expected)


def test_module_is_a_drop_in_for_torch():
    ours, theirs = RMSNorm(32, eps=1e-5), torch.nn.RMSNorm(32, eps=1e-5)
    theirs.weight.data.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 32)
    torch.testing.assert_close(ours(x), theirs(x))
    assert isinstance(ours, torch.nn.RMSNorm)


def test_module_takes_torchs_default_eps_and_no_weight():
    x = torch.randn(3, 32)
    torch.testing.assert_close(RMSNorm(32, eps=None, elementwise_affine=False)(x), torch.nn.RMSNorm(32, elementwise_affine=False)(x))


def test_gemma_module_starts_as_the_identity_scale():
    x = torch.randn(3, 32)
    torch.testing.assert_close(GemmaRMSNorm(32)(x), rms_norm(x))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (((4, 8),), {}, ValueError, r"hidden_size must be an int or a one-element shape \(got \(4, 8\)\)"),
        ((8,), {"eps": "1e-6"}, TypeError, r"eps must be a number \(got '1e-6'\)"),
        ((8,), {"offset": None}, TypeError, r"offset must be a number \(got None\)"),
        ((8,), {"casting": "bf16"}, ValueError, r"casting must be one of 'llama', 'gemma', 'none' \(got 'bf16'\)"),
    ),
)
def test_wrong_options_of_the_module_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        RMSNorm(*arguments, **options)


def test_a_process_that_never_imported_distributed_tensors():
    code = (
        "import sys, torch, npu_op_rmsnorm; x = torch.randn(2, 8, requires_grad=True);"
        "npu_op_rmsnorm.rms_norm(x).sum().backward(); assert 'torch.distributed.tensor' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    (
        (([1.0],), {}, TypeError, r"x must be a torch.Tensor \(got list\)"),
        ((torch.ones(2, dtype=torch.float64),), {}, TypeError, r"x must have dtype .* \(got float64\)"),
        ((torch.tensor(1.0),), {}, ValueError, r"x must have at least one dimension \(got a scalar\)"),
        ((torch.ones(2, 4), torch.ones(3)), {}, ValueError, r"weight must have shape \(4,\) \(got \(3,\)\)"),
        ((torch.ones(2, 4), torch.ones(4, dtype=torch.int32)), {}, TypeError, r"weight must have dtype .* \(got int32\)"),
        ((torch.ones(2, 4), torch.ones(4, device="meta")), {}, ValueError, r"weight must be on cpu like x \(got meta\)"),
        ((torch.ones(2, 4), None, None), {}, TypeError, r"eps must be a number \(got None\)"),
        ((torch.ones(2, 4),), {"offset": True}, TypeError, r"offset must be a number \(got True\)"),
        ((torch.ones(2, 4),), {"casting": "bf16"}, ValueError, r"casting must be one of 'llama', 'gemma', 'none' \(got 'bf16'\)"),
        ((torch.ones(2, 4),), {"implementation": "cuda"}, ValueError, r"implementation must be one of .* \(got 'cuda'\)"),
    ),
)
def test_wrong_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        rms_norm(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "reason"),
    (((torch.ones(2, 4), torch.ones(4)), {}, r"it needs an NPU tensor \(got cpu\)"),),
)
def test_vendor_says_why_it_cannot_run(arguments, options, reason):
    with pytest.raises(NotImplementedError, match=r"implementation='vendor' \(torch_npu.npu_rms_norm\) cannot run: " + reason):
        rms_norm(*arguments, implementation="vendor", **options)


def test_a_second_derivative_is_refused_also_where_pytorch_would_drop_it():
    x = torch.randn(4, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"no second derivative \(create_graph=True\)"):
        torch.autograd.grad(rms_norm(x).sum(), x, create_graph=True)


def test_a_tangent_is_refused():
    x = torch.randn(4, 16)
    with pytest.raises(NotImplementedError, match="forward-mode differentiation is not implemented"):
        torch.func.jvp(rms_norm, (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="forward-mode differentiation is not implemented"):
            rms_norm(dual)
        rms_norm(x)  # no tangent, no objection


def test_eager_is_the_reference():
    x, weight = torch.randn(4, 16), torch.randn(16)
    assert torch.equal(rms_norm(x, weight, implementation="eager"), rms_norm_reference(x, weight))


@pytest.mark.parametrize("width", (512, 20001))
@pytest.mark.parametrize("needs", ((True, False), (False, True)))
@pytest.mark.parametrize("mode", KERNEL_MODES, ids=lambda mode: mode.name)
def test_a_gradient_is_the_same_whatever_others_are_wanted(mode, needs, width):
    """Of rows wider than UB, backward for the parameters alone did not compile."""
    given = torch.randn(3, width).bfloat16(), torch.randn(width)
    dy = torch.randn(3, width).bfloat16()
    (alone,) = gradients_of(rms_norm, given, needs, dy, mode)
    together = gradients_of(rms_norm, given, [True] * len(given), dy, mode)
    assert torch.equal(alone, together[needs.index(True)])
