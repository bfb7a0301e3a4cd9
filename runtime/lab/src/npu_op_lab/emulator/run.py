"""The context in which an ordinary call of an operator runs on the emulated chip."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from npu_op_runtime.soc import Soc, get_soc

from ..compiler import Launch, offline
from . import costs
from .eager import L2, AtenKernel, EagerTiming, Log, Passed, Touch, eager_timing
from .findings import Finding
from .kernel import EmulatedLaunch, KernelTiming
from .recorder import SMALL, CpuRecorder, is_blank, make_blank


class FaultyKernel(RuntimeError):
    """The emulator found faults; `findings` holds them."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(str(finding) for finding in findings))


@dataclass(frozen=True)
class RunTime:
    """Modelled time of everything that ran within the context, under one ceiling.

    Attributes:
        kernels: the Triton kernels, in order.
        aten: PyTorch's own kernels between them, by the generous eager model.
        seconds: all of them, one after another, with a launch cost for each.
    """

    kernels: list[KernelTiming]
    aten: EagerTiming
    seconds: float


class Emulation:
    """What ran within `emulate`.

    Attributes:
        soc: the row of the SoC table.
        launches: the launches of Triton kernels that ran.
    """

    def __init__(self, soc: Soc, ceiling: costs.Ceiling, values: bool) -> None:
        self.soc = soc
        self.launches: list[EmulatedLaunch] = []
        self._ceiling: costs.Ceiling = ceiling
        self._recorder = CpuRecorder(values)
        self._l2 = L2(soc.l2_bytes)
        self._followed = 0
        self._fitting: list[dict[int, int]] = []  # of each launch, what it wrote and L2 has room for: names by storage

    def run(self, launch: Launch, *, values: bool, checks: bool) -> None:
        """Run a kernel where L2 is as the kernels before have left it."""
        storages = {arg.untyped_storage()._cdata: arg for arg in launch.args if isinstance(arg, torch.Tensor)}
        memory = {storage: (self._recorder.identify(arg), arg.untyped_storage().nbytes()) for storage, arg in storages.items()}
        cached = {storage for storage, (name, size) in memory.items() if self._l2_now().holds(name, size)}
        blank = {storage for storage, arg in storages.items() if is_blank(arg)}
        done = EmulatedLaunch(launch, self.soc, values=values, checks=checks, cached=cached, blank=blank)
        if not values:
            make_blank(arg for storage, arg in storages.items() if storage in done.written and memory[storage][1] > SMALL)
        self.launches.append(done)
        # In the order of the arguments: addresses differ from run to run.
        reads = [Touch(*named, writes=False) for storage, named in memory.items() if storage in done.read]
        writes = [Touch(*named, writes=True) for storage, named in memory.items() if storage in done.written]
        self._recorder.log.append(Passed((*reads, *writes)))
        self._fitting.append(
            {storage: name for storage, (name, size) in memory.items() if storage in done.written and size <= self._l2.capacity}
        )
        launch.args.clear()  # tensors that the program frees must be free: peak memory is counted

    def _l2_now(self) -> L2:
        for entry in self._recorder.log[self._followed :]:
            self._l2.follow(entry)
        self._followed = len(self._recorder.log)
        return self._l2

    def time(self, ceiling: costs.Ceiling | None = None) -> RunTime:
        """Modelled time under a ceiling (the context's own by default).

        Beside matrix products L2 keeps what a Triton kernel writes, as it keeps what PyTorch's kernels write: HBM has time for it while
        the cube works. Elsewhere a kernel's writes are in HBM when it ends.
        """
        ceiling = ceiling or self._ceiling
        log: Log = self._recorder.log
        pending: list[dict[int, int]] = [{}] * len(self.launches)
        if any(isinstance(entry, AtenKernel) and entry.flops for entry in log):
            pending = self._fitting
            names = iter(pending)
            log = [replace(entry, pending=frozenset(next(names).values())) if isinstance(entry, Passed) else entry for entry in log]
        kernels = [launch.timing(ceiling, kept) for launch, kept in zip(self.launches, pending, strict=True)]
        aten = eager_timing(log, self.soc, ceiling)
        launches = len(kernels) * costs.table()["launch_seconds"]
        return RunTime(kernels, aten, sum(kernel.seconds for kernel in kernels) + launches + aten.seconds)

    @functools.cached_property
    def modelled(self) -> RunTime:
        """`time()`, once; ask after the context has ended."""
        return self.time()

    @property
    def kernels(self) -> list[KernelTiming]:
        """Modelled time of each launch under the context's ceiling; ask after the context has ended."""
        return self.modelled.kernels

    @property
    def seconds(self) -> float:
        """Modelled time of everything under the context's ceiling; ask after the context has ended."""
        return self.modelled.seconds

    @property
    def findings(self) -> list[Finding]:
        """The faults found so far, one per kind, kernel and line."""
        return list(dict.fromkeys(finding for launch in self.launches for finding in launch.findings))


@contextmanager
def emulate(
    soc: str = "Ascend910B4", *, values: bool = True, checks: bool = True, faults: str = "raise", ceiling: costs.Ceiling = "measured"
) -> Iterator[Emulation]:
    """Within it, Triton kernels and npu-op operators called on CPU tensors are compiled for `soc` and run by the emulator.

    Make the inputs outside: PyTorch's own kernels within the context are part of the modelled time.

    Args:
        soc: a name of the SoC table.
        values: compute results; False follows only addresses, sizes and control flow, so that large shapes take no time, and
            leaves in the outputs of kernels what was in their memory, zeros if it is small and was allocated within, and in those of
            PyTorch's calls on large tensors too.
        checks: with values: look for UB bytes read before they are written, races and deadlocks of the pipes, races of programs in GM.
        faults: "raise" raises at the end what the checks found, "collect" leaves it in `findings`.
        ceiling: the bandwidth that `kernels` and `seconds` are modelled with, "measured" or "cann" (see `costs.gm_bandwidth`).

    Raises:
        ValueError: unknown `soc`, `faults` or `ceiling`; from the call, an operator on tensors of another device than the CPU.
        FaultyKernel: at the end, with the findings.
        OutOfBounds: from the call, an access outside a tensor's storage.
        UndefinedBehavior: from the call, a number or a size without a meaning (a division by zero).
        NotImplementedError: from the call, an operation that the emulator does not cover, a loop that unknown data end,
            a kernel for the cube core, or, without values, a call of PyTorch's whose result hangs on data that were not computed.
    """
    if faults not in ("raise", "collect"):
        raise ValueError(f"faults must be 'raise' or 'collect' (got {faults!r})")
    row = get_soc(soc)
    costs.gm_bandwidth(row, ceiling)
    emulation = Emulation(row, ceiling, values)

    def on_launch(launch: Launch) -> None:
        emulation.run(launch, values=values, checks=checks)

    with offline(soc, on_launch), emulation._recorder:
        yield emulation
    if faults == "raise" and emulation.findings:
        raise FaultyKernel(emulation.findings)
