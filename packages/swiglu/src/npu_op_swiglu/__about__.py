"""Version of npu-op-swiglu, read by hatch."""

__version__ = "0.1.0"
