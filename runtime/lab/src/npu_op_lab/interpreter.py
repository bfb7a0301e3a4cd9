"""Mends what Triton's interpreter does unlike any device: it truncates fp32 to bf16, rounds the product of a fused multiply-add, and walks
a maximum element by element."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

# triton-ascend 3.2.0's tl.max and tl.min reduce by functions of its own, which its interpreter does not know. They ignore NaN.
_REDUCTIONS = {"_elementwise_max_default": np.fmax.reduce, "_elementwise_min_default": np.fmin.reduce}


@contextmanager
def mended() -> Iterator[None]:
    """Within it, the interpreter rounds as NPU and GPU do, to bf16 to nearest even and tl.fma once, and NumPy takes maxima and minima."""
    from triton.runtime import interpreter

    convert, reduce = interpreter._convert_float, interpreter.ReduceOps.apply_impl

    def rounded(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if (source.name, target.name) == ("fp32", "bf16"):
            return data.astype(ml_dtypes.bfloat16).view(np.uint16)
        return convert(data, source, target, rounding_mode)

    def reduced(self: Any, operands: Any) -> Any:
        by_numpy = _REDUCTIONS.get(self.combine_fn.fn.__name__)
        return self.min_max(operands, val_reduce_op=by_numpy) if by_numpy else reduce(self, operands)

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        # fp64 holds the product of two fp32 exactly.
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(interpreter, "_convert_float", rounded))
        patches.enter_context(mock.patch.object(interpreter.ReduceOps, "apply_impl", reduced))
        patches.enter_context(mock.patch.object(interpreter.InterpreterBuilder, "create_fma", fused))
        yield
