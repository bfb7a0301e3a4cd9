"""What can go wrong between a Triton kernel and its HIVM IR."""

from __future__ import annotations


class CompileError(RuntimeError):
    """The vendor's compiler refused a kernel; the message names kernel and SoC and carries the compiler's own words."""


class UbOverflow(CompileError):
    """A kernel needs more Unified Buffer than the SoC has, even after the compiler gave up double buffering.

    Attributes:
        kernel, soc: what was compiled for what.
        required_bits, available_bits: the compiler's figures.
    """

    def __init__(self, kernel: str, soc: str, required_bits: int, available_bits: int) -> None:
        self.kernel, self.soc, self.required_bits, self.available_bits = kernel, soc, required_bits, available_bits
        super().__init__(
            f"{kernel} for {soc}: UB overflow, {required_bits} bits required, {available_bits} available "
            f"({required_bits / available_bits:.2f} times the UB): make the tile smaller"
        )
