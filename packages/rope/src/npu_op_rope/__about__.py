"""Version of npu-op-rope, read by hatch."""

__version__ = "0.1.0"
