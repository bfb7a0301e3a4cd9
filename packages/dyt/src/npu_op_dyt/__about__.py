"""Version of npu-op-dyt, read by hatch."""

__version__ = "0.1.0"
