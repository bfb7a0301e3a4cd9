"""Version of npu-op-split-qk-norm, read by hatch."""

__version__ = "0.1.0"
