"""Version of npu-op-softmax, read by hatch."""

__version__ = "0.1.0"
