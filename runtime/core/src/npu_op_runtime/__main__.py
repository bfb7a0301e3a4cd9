"""`python -m npu_op_runtime`: what is installed, what is wrong, and the command that mends it. Exits 1 on a problem."""

from __future__ import annotations

import platform
import sys

from .__about__ import __version__
from .stack import diagnose


def main() -> int:
    print(f"npu-op-runtime {__version__}, Python {platform.python_version()}, {platform.machine()}")
    findings = diagnose()
    for finding in findings:
        print(f"{finding.level:>8}  {finding.what}")
        if finding.remedy:
            print(f"{'':>8}  -> {finding.remedy}")
    return any(finding.level == "problem" for finding in findings)


if __name__ == "__main__":
    sys.exit(main())
