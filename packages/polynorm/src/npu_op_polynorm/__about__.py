"""Version of npu-op-polynorm, read by hatch."""

__version__ = "0.1.0"
