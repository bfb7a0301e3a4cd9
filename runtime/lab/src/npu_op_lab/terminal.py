"""Where tables are printed."""

from __future__ import annotations

import sys

from rich.console import Console

# Of tables that go to a file or a pipe: narrower ones cut their columns off.
_WIDTH = 160


def console() -> Console:
    """As wide as the terminal, or wide enough for every table where there is none."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)
