"""`npu-lab validate`: write the page that compares the model with published measurements."""

from __future__ import annotations

import argparse
from typing import Any

from .compile import _output


def add(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "validate",
        help="compare the emulator's times with published measurements",
        description="Model what others have measured on hardware and published, and write both, with the misses, as a Markdown page.",
    )
    parser.add_argument("--out", type=_output, default="docs/validation.md", metavar="FILE", help="the page (%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    from ..emulator.validation.page import page

    options.out.write_text(page())
    return 0
