"""Version of npu-op-llama4-rope, read by hatch."""

__version__ = "0.1.0"
