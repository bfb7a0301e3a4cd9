"""Oracle, offline Ascend compiler, emulator and benchmarks of the npu-op operators."""
