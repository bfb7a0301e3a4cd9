"""Version of npu-op-geglu, read by hatch."""

__version__ = "0.1.0"
