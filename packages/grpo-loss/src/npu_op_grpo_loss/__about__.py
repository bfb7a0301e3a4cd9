"""Version of npu-op-grpo-loss, read by hatch."""

__version__ = "0.1.0"
