"""Version of npu-op-jsd, read by hatch."""

__version__ = "0.1.0"
