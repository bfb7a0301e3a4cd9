"""Version of npu-op-lab, read by hatch."""

__version__ = "0.1.0"
