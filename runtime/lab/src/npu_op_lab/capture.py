"""Captures a call into a graph that replays its kernels without its Python, as serving engines do for decode steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")

# The graph of each device, in torch.<device>.
_GRAPHS = {"cuda": "CUDAGraph", "npu": "NPUGraph"}


def capture(call: Callable[[], Result], device: str) -> tuple[Result, Callable[[], None]]:
    """Runs `call` once to warm up and once more recorded; returns the recorded result and what replays it into the same memory.

    On an accelerator it is the device's own graph. On the CPU it is the calls that go through the dispatcher, with the same
    semantics: addresses and Python numbers are those of the capture, and what Python decided then stays decided.
    """
    if device == "cpu":
        call()
        with Tape() as tape:
            result = call()
        return result, tape.replay
    module = getattr(torch, device)
    # A capture wants its warm-up on a stream of its own.
    stream = module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        call()
    module.current_stream().wait_stream(stream)
    graph = getattr(module, _GRAPHS[device])()
    with module.graph(graph):
        result = call()
    return result, graph.replay


class Tape(TorchDispatchMode):
    """Keeps the calls that go through the dispatcher and all tensors that they name, so that no memory is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Calls everything again on the recorded tensors and puts the results where the recorded ones lie."""
        with torch.no_grad():
            for func, args, kwargs, result in self._calls:
                if not func.is_view:
                    for recorded, again in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                        if isinstance(recorded, torch.Tensor):
                            recorded.copy_(again)
