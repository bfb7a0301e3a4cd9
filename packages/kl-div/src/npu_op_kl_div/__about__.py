"""Version of npu-op-kl-div, read by hatch."""

__version__ = "0.1.0"
