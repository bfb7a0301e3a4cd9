"""Version of npu-op-qwen2vl-mrope, read by hatch."""

__version__ = "0.1.0"
