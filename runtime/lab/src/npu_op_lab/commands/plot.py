"""`npu-lab plot`: a saved run, as table and picture, without running anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import terminal
from ..bench import BadRecords, read
from ..bench.liger_csv import read_liger
from ..bench.plots import plot
from ..bench.records import Record
from ..bench.table import tables


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "plot",
        help="show saved results as a table and a PNG",
        description="Show saved results as tables and draw them beside the file. Exit status 2 when one cannot be read; the rest goes on.",
    )
    parser.add_argument("file", nargs="+", type=Path, help="JSON lines of `npu-lab bench`, or a CSV of Liger-Kernel's benchmarks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print and draw each file."""
    console, status = terminal.console(), 0
    for file in options.file:
        try:
            records: list[Record] = read_liger(file) if file.suffix == ".csv" else read(file)
        except BadRecords as error:
            print(f"npu-lab plot: {error}", file=sys.stderr)
            status = 2
            continue
        for table in tables(records):
            console.print(table)
        for picture in plot(records, file.with_suffix("")):
            console.print(f"plot: {picture}", markup=False)
    return status
