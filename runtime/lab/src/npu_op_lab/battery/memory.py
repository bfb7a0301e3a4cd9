"""Checks of what an operator reads, writes, allocates and copies."""

from __future__ import annotations

from typing import Any

import torch

from npu_op_runtime.spec import Case, OperatorSpec

from ..execution import Mode
from ..inputs import Inputs, sliced
from ..oracle import check as judge
from ..passes import Call, prepared, reference_results, wanted
from ..watch import GuardedMemory, HostSyncs, Recorder
from .check import check, require
from .selection import contiguous_representatives, differentiable_representatives, pure_representatives, representatives, values
from .values import EXECUTED

REPEATS = 6


@check(lambda spec: [case for case in values(spec) if "inplace" not in case.tags], *EXECUTED)
def check_inputs_unchanged(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Inputs and incoming gradients hold the same bits after the call, and so does what lies between their rows."""
    call = _call(spec, case, mode)
    before = [_memory(tensor).clone() for tensor in call.tensors]
    with mode.enter():
        call.run(spec.function)
    changed = [tuple(tensor.shape) for tensor, kept in zip(call.tensors, before, strict=True) if not torch.equal(_memory(tensor), kept)]
    assert not changed, f"changed inputs or incoming gradients of shapes {changed}"


@check(values, "interpreter", "cuda", "npu")
def check_guard_bands(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Between guard bands and on poisoned memory: nothing outside of a tensor is read or written, nothing is left unwritten."""
    reference = reference_results(spec, case, device=mode.device)
    guarded = GuardedMemory()
    call = prepared(spec, case, reference.upstream, device=mode.device, layout=guarded.guard)
    with mode.enter(), guarded:
        actual = call.run(spec.function)
    broken = guarded.broken_bands()
    assert not broken, f"written outside: {'; '.join(broken)}"
    # Judged beside itself a value cannot be wrong, only NaN where gold is not.
    require(judge(name, actual.get(name), actual.get(name), gold) for name, gold in reference.gold.items())


@check(pure_representatives, *EXECUTED)
def check_repeatable(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """The same call gives the same bits every time."""
    call = _call(spec, case, mode)
    with mode.enter():
        runs = [call.run(spec.function) for _ in range(REPEATS)]
    different = sorted({name for again in runs[1:] for name in runs[0] if not _same_bits(runs[0][name], again[name])})
    assert not different, f"{REPEATS} equal calls differ in {', '.join(different)}"


@check(differentiable_representatives, "interpreter", "cuda", "npu")
def check_frozen_costs_nothing(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Without the gradient of an argument the call allocates less, by that gradient at least."""
    names = wanted(spec, case, spec.make_inputs(case, Inputs(empty=True)))
    whole = _allocated(spec, case, mode, ())
    for name in names:
        tensor = spec.make_inputs(case, Inputs(empty=True))[name]
        saved = whole - _allocated(spec, case, mode, (name,))
        least = tensor.numel() * tensor.element_size()
        assert saved >= least, f"freezing {name} saves {saved} bytes, its gradient has {least}"


@check(contiguous_representatives, "offline-Ascend910B4", "cuda", "npu")
def check_no_copy(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Inputs and incoming gradients whose last dimension is contiguous are read where they lie."""
    call = _call(spec, case, mode, layout=sliced)
    with mode.enter(), Recorder() as recorder:
        call.run(spec.function)
    copies = recorder.copies_of(call.tensors)
    assert not copies, f"copied: {', '.join(f'{copy.func} of {tuple(copy.tensors[-1].shape)}' for copy in copies)}"


@check(representatives, "offline-Ascend910B4", "cuda", "npu")
def check_no_host_sync(spec: OperatorSpec, case: Case, mode: Mode) -> None:
    """Nothing on the path waits for the device."""
    call = _call(spec, case, mode)
    with mode.enter():
        if mode.kind == "offline":
            with HostSyncs() as syncs:
                call.run(spec.function)
            assert not syncs.found, f"reads values on the host: {', '.join(syncs.found)}"
        else:
            device = getattr(torch, mode.kind)
            call.run(spec.function)  # compiles, which may wait
            device.set_sync_debug_mode("error")
            try:
                call.run(spec.function)
            finally:
                device.set_sync_debug_mode("default")


def _call(spec: OperatorSpec, case: Case, mode: Mode, **options: Any) -> Call:
    reference = reference_results(spec, case, device=mode.device)
    return prepared(spec, case, reference.upstream, device=mode.device, **options)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage behind a tensor, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _allocated(spec: OperatorSpec, case: Case, mode: Mode, frozen: tuple[str, ...]) -> int:
    call = _call(spec, case, mode, frozen=frozen)
    with mode.enter(), Recorder() as recorder:
        call.run(spec.function)
    return recorder.allocated_bytes
