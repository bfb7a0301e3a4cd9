"""Runs the Python examples of a README as a reader would paste them. Run: python ci/readme.py packages/rmsnorm/README.md"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def examples(readme: Path) -> list[str]:
    """The blocks marked as python.

    Raises:
        ValueError: there is none.
    """
    blocks = re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
    if not blocks:
        raise ValueError(f"{readme} must have an example in a ```python block")
    return blocks


def main(readme: str) -> int:
    # One process, isolated from the working directory: the examples of one README may build on another.
    return subprocess.run([sys.executable, "-I", "-c", "\n".join(examples(Path(readme)))], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
