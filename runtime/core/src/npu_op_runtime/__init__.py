"""The runtime shared by the npu-op operators."""
