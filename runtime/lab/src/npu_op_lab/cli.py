"""The `npu-lab` command; a module in `commands` is a subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from . import commands
from .__about__ import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit status: 0 for success, 1 for a finding, 2 for a wrong argument."""
    parser = argparse.ArgumentParser(prog="npu-lab", description="Develop Triton kernels for Ascend NPUs on a machine that has none.")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(required=True, metavar="command")
    for module in sorted(iter_modules(commands.__path__), key=lambda found: found.name):
        import_module(f"{commands.__name__}.{module.name}").add(subparsers)
    options = parser.parse_args(arguments)
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
