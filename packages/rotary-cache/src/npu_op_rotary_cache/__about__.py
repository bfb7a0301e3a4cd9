"""Version of npu-op-rotary-cache, read by hatch."""

__version__ = "0.1.0"
