"""Version of npu-op-groupnorm, read by hatch."""

__version__ = "0.1.0"
