"""The stand-in Triton driver and the Ascend back end that ends in HIVM IR instead of a device binary."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import torch
from triton.backends import backends
from triton.backends.ascend.compiler import _parse_linalg_metadata
from triton.backends.compiler import GPUTarget

from npu_op_runtime.soc import Soc

from .errors import CompileError, UbOverflow
from .launch import CompiledKernel, Launch
from .toolchain import compile_linalg

# triton loads its back ends as module objects of their own: this class is the one that its compiler knows.
AscendBackend: Any = backends["ascend"].compiler

# Part of the cache key: raise it when the stored payload changes.
_PAYLOAD_VERSION = 5


class OfflineBackend(AscendBackend):
    """triton-ascend's back end with its last stage replaced; Triton's own cache then stores the HIVM IR by content."""

    def hash(self) -> str:
        # A cache folder shared with a real device must never give one the other's binary.
        return f"npu-op-lab-{_PAYLOAD_VERSION}-{super().hash()}"

    def add_stages(self, stages: dict[str, Callable[[Any, dict[str, Any]], Any]], options: Any) -> None:
        super().add_stages(stages, options)
        if "ttadapter" not in stages:
            raise NotImplementedError("compile_mode='simt_only' bypasses the vector pipeline: the offline compiler covers 'simd' only")
        stages["npubin"] = _to_hivm


def _to_hivm(linalg: str, metadata: dict[str, Any]) -> bytes:
    linalg, metadata = _parse_linalg_metadata(linalg, metadata)
    try:
        hivm = compile_linalg(linalg, kernel=metadata["kernel_name"], soc=metadata["target"].arch, options=metadata)
    except UbOverflow as error:
        # Triton would wrap a refusal in an error of its own: it travels in the payload, is cached, and raised at the launch.
        return json.dumps({"overflow": [error.required_bits, error.available_bits]}).encode()
    except CompileError as error:
        return json.dumps({"error": str(error)}).encode()
    file = re.search(r'loc\("([^"]+)"', linalg)
    return json.dumps({"ir": hivm.ir, "notes": hivm.notes, "seconds": hivm.seconds, "file": file[1] if file else ""}).encode()


class _Utils:
    """What triton-ascend and kernels ask of a device."""

    def __init__(self, soc: Soc) -> None:
        self._soc = soc

    def get_device_properties(self, device: object) -> dict[str, int]:
        # max_shared_mem: triton-ascend 3.2.0 answers 1 on a real device too.
        return {"max_shared_mem": 1, "num_aicore": self._soc.cube_cores, "num_vectorcore": self._soc.vector_cores}

    def get_arch(self) -> str:
        return self._soc.name

    def get_aicore_num(self) -> int:
        return self._soc.cube_cores

    def get_aivector_core_num(self) -> int:
        return self._soc.vector_cores

    def load_binary(self, name: str, binary: bytes, shared: int, device: object) -> tuple[None, dict[str, Any], int, int]:
        payload = json.loads(binary)
        if "overflow" in payload:
            raise UbOverflow(name.split()[0], self._soc.name, *payload["overflow"])
        if "error" in payload:
            raise CompileError(payload["error"])
        # The second item comes back to the launcher as the function to run.
        return None, payload, 0, 0


def _no_benchmark(*arguments: object, **options: object) -> None:
    raise NotImplementedError("autotuning measures on a device: offline, call the kernel with one configuration")


class OfflineDriver:
    """Answers for a device of `soc` and hands every launch to `record`."""

    def __init__(self, soc: Soc, record: Callable[[Launch], None]) -> None:
        self._soc, self._record = soc, record
        self.utils = _Utils(soc)

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        names = src.fn.arg_names
        gone = {names.index(key) if isinstance(key, str) else key for key in src.constants}
        live = [index not in gone for index in src.fn.non_constexpr_indices]

        file = inspect.getsourcefile(src.fn.fn)

        def launch(x: int, y: int, z: int, stream: object, payload: dict[str, Any], *rest: Any) -> None:
            # The cache goes by content: the same kernel may have been compiled from a file elsewhere.
            ir = payload["ir"].replace(f'loc("{payload["file"]}"', f'loc("{file}"')
            kernel = CompiledKernel(
                metadata.kernel_name, metadata.target.arch, ir, tuple(payload["notes"]), payload["seconds"], metadata.hash
            )
            arguments = rest[4:]  # packed metadata, launch metadata and two hooks come first
            self._record(Launch(kernel, (x, y, z), [value for value, keep in zip(arguments, live, strict=True) if keep]))

        return launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("npu", self._soc.name, 0)

    def get_current_device(self) -> str:
        # A JITFunction keeps its compiled kernels by device: one per SoC keeps them apart.
        return f"offline:{self._soc.name}"

    def set_current_device(self, device: object) -> None:
        pass

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        return _no_benchmark
