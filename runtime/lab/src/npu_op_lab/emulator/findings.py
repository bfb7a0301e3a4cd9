"""What the emulator reports of a kernel's faults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        kind: "unwritten" (UB bytes read that nothing wrote), "race" (two pipes in one UB range without a flag between them),
            "deadlock" (a flag awaited that nothing sets), "gm-race" (two programs in one GM range, one of them writing).
        kernel: the kernel's name.
        where: the source line, "kernel.py:12"; "" when the compiler kept none.
        message: what happened.
    """

    kind: str
    kernel: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kernel} at {self.where or 'an unknown line'}: {self.message}"


class OutOfBounds(IndexError):
    """An access to GM outside the storage of the tensor it belongs to; the message names kernel, line, tensor and range."""


class UndefinedBehavior(RuntimeError):
    """A number or a size that the IR gives no meaning: a division by zero, a negative shift count, a box of negative size.

    The message names operation and source line.
    """
