"""Version of npu-op-tvd, read by hatch."""

__version__ = "0.1.0"
