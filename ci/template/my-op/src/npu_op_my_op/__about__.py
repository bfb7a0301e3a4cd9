"""Version of npu-op-my-op, read by hatch."""

__version__ = "0.1.0"
