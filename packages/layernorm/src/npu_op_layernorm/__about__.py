"""Version of npu-op-layernorm, read by hatch."""

__version__ = "0.1.0"
