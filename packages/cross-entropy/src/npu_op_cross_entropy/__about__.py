"""Version of npu-op-cross-entropy, read by hatch."""

__version__ = "0.1.0"
