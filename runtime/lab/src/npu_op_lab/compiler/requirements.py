"""Stops the import of the compiler with the command that mends it when a part of its stack is missing."""

from __future__ import annotations

from importlib.util import find_spec

_INSTALL = "pip install 'npu-op-lab[compiler]'"

for _package, _module in (("triton-ascend", "triton"), ("pybind11", "pybind11"), ("ascendnpu-ir", "ascendnpuir"), ("xdsl", "xdsl")):
    if find_spec(_module) is None:
        raise ImportError(f"the offline compiler needs {_package}: {_INSTALL}")

if find_spec("triton.backends.ascend") is None:
    raise ImportError(
        "the offline compiler needs triton-ascend, but `triton` is installed and both write the same folder: "
        f"pip uninstall -y triton triton-ascend && {_INSTALL}"
    )
