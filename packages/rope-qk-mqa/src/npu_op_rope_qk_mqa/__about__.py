"""Version of npu-op-rope-qk-mqa, read by hatch."""

__version__ = "0.1.0"
