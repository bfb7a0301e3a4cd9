"""Version of npu-op-mtp-input, read by hatch."""

__version__ = "0.1.0"
