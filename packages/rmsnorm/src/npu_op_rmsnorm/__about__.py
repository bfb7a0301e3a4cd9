"""Version of npu-op-rmsnorm, read by hatch."""

__version__ = "0.1.0"
