from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from npu_op_runtime import launch as launch_module
from npu_op_runtime.device import Target
from npu_op_runtime.launch import Launch, launch

NPU = Target("npu", 40, 196608)


class Kernel:
    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **constants: self.calls.append((grid, args, constants))


def test_no_programs_no_launch():
    kernel = Kernel()
    launch(kernel, 0, NPU, torch.empty(1), 1)
    assert kernel.calls == []


def test_num_warps_goes_to_cuda_only():
    kernel = Kernel()
    launch(kernel, 3, NPU, torch.empty(1), 1, num_warps=8, BLOCK=2)
    assert kernel.calls == [((3,), (1,), {"BLOCK": 2})]


def test_a_grid_above_the_limit_is_refused_before_the_launch():
    kernel = Kernel()
    with pytest.raises(ValueError, match=r"programs must be at most 65535 on the NPU \(got 65536\)"):
        launch(kernel, 65536, NPU, torch.empty(1))
    assert kernel.calls == []


class CompilingKernel:
    """As Triton's kernels on CUDA: a call compiles for the like of its arguments and returns what was compiled."""

    arg_names = ("X", "count", "eps", "ROWS", "COLS")

    def __init__(self, scratch=0):
        self.searched = []
        self.launched = []
        self.by_triton = []
        self.scratch = scratch

    def __getitem__(self, grid):
        def call(*args, num_warps, ROWS, COLS):
            self.searched.append((grid, args, num_warps, ROWS, COLS))
            return Compiled(self)

        return call


class Compiled:
    """As what Triton 3.6 compiles: `run.launch` takes addresses, `[grid]` tensors."""

    function, packed_metadata = 77, (8, 1, 0)

    def __init__(self, kernel):
        self.kernel = kernel
        self.run = SimpleNamespace(
            launch=self._launch, global_scratch_size=kernel.scratch, profile_scratch_size=0, launch_cooperative_grid=False, launch_pdl=False
        )  # fmt: skip

    def _launch(self, x, y, z, stream, function, cooperative, pdl, global_scratch, profile_scratch, metadata, *rest):
        assert (stream, function, cooperative, pdl, global_scratch, profile_scratch) == (99, 77, False, False, None, None)
        assert metadata == (8, 1, 0) and rest[:3] == (None, None, None)  # a description of the launch, and the hooks that take it
        self.kernel.launched.append(((x, y, z), rest[3:]))

    def __getitem__(self, grid):
        return lambda *args: self.kernel.by_triton.append((grid, args))


class OnCuda(torch.Tensor):
    """A tensor that lies on the CPU and says otherwise."""

    device = torch.device("cuda")


def _empty(size: int) -> torch.Tensor:
    return torch.empty(size).as_subclass(OnCuda)


@pytest.fixture
def cuda(monkeypatch):
    """Launches as on the first CUDA device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99, raising=False)
    monkeypatch.setattr("npu_op_runtime.launch._launches_are_watched", lambda: False)
    monkeypatch.setattr("npu_op_runtime.launch._compiled", {})
    monkeypatch.setattr("npu_op_runtime.launch._compiled_kernels_take_constants", lambda: True)
    return Target("cuda", 132, 0)


def test_the_like_of_an_earlier_call_goes_to_what_was_compiled_for_it(cuda):
    kernel, x, y = CompilingKernel(), _empty(8), _empty(8)
    launch(kernel, 3, cuda, x, x, 5, 1e-6, COLS=2, ROWS=4)
    launch(kernel, 7, cuda, y, y, 5, 1e-5, COLS=2, ROWS=4)
    assert len(kernel.searched) == 1
    # The constants stand in the order of the kernel's parameters, whatever order the call named them in.
    assert kernel.launched == [((7, 1, 1), (y.data_ptr(), 5, 1e-5, 4, 2))]


@pytest.mark.parametrize(
    ("x", "count", "constants"),
    [
        (torch.empty(8, dtype=torch.bfloat16), 5, {}),
        (torch.empty(9)[1:], 5, {}),
        (None, 5, {}),
        (torch.empty(8), 6, {}),
        (torch.empty(8), 2**31, {}),
        (torch.empty(8), 5, {"ROWS": 8}),
        (torch.empty(8), 5, {"num_warps": 8}),
    ],
    ids=["dtype", "alignment", "None", "integer", "large integer", "constant", "warps"],
)
def test_what_triton_might_compile_anew_for_is_left_to_triton(cuda, x, count, constants):
    kernel, first = CompilingKernel(), _empty(8)
    launch(kernel, 3, cuda, first, first, 5, 1e-6, ROWS=4, COLS=2)
    launch(kernel, 3, cuda, first, x, count, 1e-6, **{"ROWS": 4, "COLS": 2, **constants})
    assert len(kernel.searched) == 2
    assert kernel.launched == []


def test_a_kernel_with_scratch_memory_is_launched_by_triton(cuda):
    kernel, x = CompilingKernel(scratch=128), _empty(8)
    for _ in range(2):
        launch(kernel, 3, cuda, x, x, 5, 1e-6, ROWS=4, COLS=2)
    assert kernel.launched == [] and kernel.by_triton == [((3, 1, 1), (x.data_ptr(), 5, 1e-6, 4, 2))]


def test_a_watched_launch_is_launched_by_triton_which_tells_who_watches(cuda, monkeypatch):
    kernel, x = CompilingKernel(), _empty(8)
    launch(kernel, 3, cuda, x, x, 5, 1e-6, ROWS=4, COLS=2)
    monkeypatch.setattr("npu_op_runtime.launch._launches_are_watched", lambda: True)
    launch(kernel, 3, cuda, x, x, 5, 1e-6, ROWS=4, COLS=2)
    assert kernel.launched == [] and kernel.by_triton == [((3, 1, 1), (x.data_ptr(), 5, 1e-6, 4, 2))]


@pytest.mark.parametrize("hook", [SimpleNamespace(calls=[print]), print])
@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
def test_who_watches_launches_is_seen(monkeypatch, name, hook):
    knobs = SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[]), launch_exit_hook=None)
    monkeypatch.setattr("npu_op_runtime.launch._knobs", lambda: knobs)
    assert not launch_module._launches_are_watched()
    setattr(knobs, name, hook)
    assert launch_module._launches_are_watched()


def test_two_kernels_of_the_same_arguments_are_two(cuda):
    x = _empty(8)
    kernels = CompilingKernel(), CompilingKernel()
    for kernel in kernels:
        launch(kernel, 3, cuda, x, x, 5, 1e-6, ROWS=4, COLS=2)
    assert [len(kernel.searched) for kernel in kernels] == [1, 1]


def test_what_is_kept_is_bounded(cuda, monkeypatch):
    monkeypatch.setattr("npu_op_runtime.launch._MAX_COMPILED", 4)
    kernel, x = CompilingKernel(), _empty(8)
    for count in range(11):
        launch(kernel, 3, cuda, x, x, count, 1e-6, ROWS=4, COLS=2)
    assert len(launch_module._compiled) <= 4
    launch(kernel, 3, cuda, x, x, 10, 1e-6, ROWS=4, COLS=2)
    assert len(kernel.launched) == 1


def test_another_triton_is_always_asked(cuda, monkeypatch):
    monkeypatch.setattr("npu_op_runtime.launch._compiled_kernels_take_constants", lambda: False)
    kernel, x = CompilingKernel(), _empty(8)
    for _ in range(2):
        launch(kernel, 3, cuda, x, x, 5, 1e-6, ROWS=4, COLS=2)
    assert len(kernel.searched) == 2


@pytest.fixture
def kept(cuda, monkeypatch):
    """A kept launch of a kernel that compiles, and the kernel."""
    kernel = CompilingKernel()
    monkeypatch.setattr("npu_op_runtime.launch.load_kernels", lambda module, backend: SimpleNamespace(kernel=kernel))
    return Launch("module", "kernel", 3, cuda, (5, 1e-6), num_warps=8, COLS=2, ROWS=4), kernel


def test_a_kept_launch_goes_to_what_was_compiled_for_it(kept):
    run, kernel = kept
    x, y = _empty(8), _empty(8)
    run(x)
    run(y)
    assert kernel.searched == [((3,), (x, 5, 1e-6), 8, 4, 2)]
    assert kernel.launched == [((3, 1, 1), (y.data_ptr(), 5, 1e-6, 4, 2))]


def test_a_kept_launch_compiles_anew_for_another_alignment_and_another_kernel(kept, monkeypatch):
    run, kernel = kept
    x = _empty(8)
    run(x)
    run(x[1:])
    assert len(kernel.searched) == 2
    other = CompilingKernel()
    monkeypatch.setattr("npu_op_runtime.launch.load_kernels", lambda module, backend: SimpleNamespace(kernel=other))
    run(x)
    assert len(other.searched) == 1 and kernel.launched == []


def test_a_kept_launch_of_another_triton_is_launched_as_any(kept, monkeypatch):
    run, kernel = kept
    monkeypatch.setattr("npu_op_runtime.launch._compiled_kernels_take_constants", lambda: False)
    for _ in range(2):
        run(_empty(8))
    assert len(kernel.searched) == 2 and kernel.launched == []


def test_a_kept_launch_on_the_npu_hands_over_everything(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr("npu_op_runtime.launch.load_kernels", lambda module, backend: SimpleNamespace(kernel=kernel))
    x = torch.empty(1)
    Launch("module", "kernel", 3, NPU, (7,), num_warps=8, BLOCK=2)(None, x)
    assert kernel.calls == [((3,), (None, x, 7), {"BLOCK": 2})]
