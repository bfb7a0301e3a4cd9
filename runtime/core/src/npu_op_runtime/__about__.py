"""Version of npu-op-runtime, read by hatch."""

__version__ = "0.1.0"
