"""PyTorch's calls between kernels while only time is modelled: what is computed, what is not, and who may read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from npu_op_lab.bench.memory import PeakMemory
from npu_op_lab.emulator import emulate

from . import emulated_kernels as kernels

_LARGE = (512, 1024)


def _gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(F.log_softmax(x.float(), -1).to(x.dtype).tanh().sum(), x)


@pytest.mark.parametrize(
    "call",
    (
        lambda x: x.t() * 0.5,
        lambda x: x.t()[::2] + x[:, ::2].t(),
        lambda x: x.float().sum(-1, keepdim=True) + x,
        lambda x: (x.transpose(0, 1).contiguous(), torch.zeros_like(x.t()), x.new_ones(3), torch.full((700, 700), 2.0)),
        lambda x: x.max(-1),
        lambda x: torch.where(x > 0, x, 0).expand(2, *x.shape).clone(),
        lambda x: x.to(torch.int64) * 0.5,
        lambda x: torch.cat([x, x[:3]]).chunk(2, 1),
        lambda x: x.clone().mul_(2).unsqueeze_(0),
        lambda x: torch.add(x, x, out=torch.empty_like(x)),
        lambda x: F.layer_norm(x.float(), x.shape[-1:]),
        lambda x: x[torch.arange(7)].index_add_(0, torch.arange(7), x[:7]),
        _gradients,
    ),
)
def test_without_values_results_have_the_form_the_time_and_the_memory_of_those_with_values(call: Callable[..., object]) -> None:
    x = torch.ones(_LARGE, dtype=torch.bfloat16)
    found = []
    for values in (True, False):
        with PeakMemory([x]) as memory, emulate(values=values) as run:
            results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        found.append(([(result.shape, result.stride(), result.dtype) for result in results], run.seconds, memory.peak))
    assert found[0] == found[1]


def test_without_values_nothing_large_is_computed() -> None:
    x = torch.empty(1 << 16, 1 << 14)  # 4 GiB that is never touched
    with emulate(values=False) as run:
        for _ in range(100):
            x = (x * 2).exp_()
    assert len(run.time().aten.kernels) == 200


def test_what_is_small_is_computed() -> None:
    with emulate(values=False):
        kept = (torch.arange(100) % 3 == 0).sum()
        assert kept.item() == 34
        assert torch.empty(10, dtype=torch.int64).tolist() == [0] * 10


@pytest.mark.parametrize(
    ("read", "name"),
    (
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool((x > 0).all()), "is_nonzero|_local_scalar_dense"),
        (lambda x: x[x > 0], "index"),
        (lambda x: (x[0] > 0).nonzero(), "nonzero"),
        (lambda x: torch.equal(x, x.clone()), "equal"),
    ),
)
def test_who_would_read_what_was_not_computed_is_refused_by_name(read: Callable[[torch.Tensor], object], name: str) -> None:
    x = torch.ones(_LARGE)
    with emulate(values=False):
        doubled = x * 2
        with pytest.raises(NotImplementedError, match=f"aten::({name}) depends on data that are not computed"):
            read(doubled)
    with emulate():
        read(x * 2)


def test_a_number_that_a_kernel_reads_from_such_memory_is_unknown() -> None:
    counts, y = torch.ones(1 << 16, dtype=torch.int32), torch.empty(1 << 16)
    with emulate(values=False):
        doubled = counts * 2
        with pytest.raises(NotImplementedError, match="depends on data"):
            kernels.count_from_memory[(1,)](doubled, y, BLOCK=64)
    with emulate(values=False) as run:
        kernels.count_from_memory[(1,)](counts, y, BLOCK=64)
    assert len(run.kernels) == 1
