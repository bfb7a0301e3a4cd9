"""`npu-lab serving`: the summary of a serving run from its request records, or of two runs and the change between them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import terminal
from ..serving import BadRequests, change_tables, read, summarise, summary_tables

_DESCRIPTION = """\
Summarise a serving run: latencies (E2EL, TTFT, TPOT, ITL) by percentile, and throughputs. With a second file, that run too, and the
change from the first to the second.

A file has one JSON record a line for each request, as the client saw it, times in seconds of one clock:
  {"start": 0.0, "arrivals": [0.41, 0.44, 0.47], "input_tokens": 512, "output_tokens": 5, "end": 0.47}
  {"start": 0.1, "input_tokens": 90, "end": 30.1, "error": "timeout"}
arrivals: of each chunk of a streamed answer; output_tokens is needed where a chunk brings several tokens (speculative decoding).

Exit status 2 when a file or a line of it is not as described; the message says which and why."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "serving",
        help="summarise the request records of a serving run, or compare two",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="JSON lines of request records")
    parser.add_argument("after", type=Path, nargs="?", help="those of a second run, to compare with the first")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the tables."""
    files = [options.file, *([options.after] if options.after else [])]
    try:
        summaries = [summarise(read(file)) for file in files]
    except BadRequests as error:
        print(f"npu-lab serving: {error}", file=sys.stderr)
        return 2
    console = terminal.console()
    for file, summary in zip(files, summaries, strict=True):
        for table in summary_tables(file.name, summary):
            console.print(table)
    if options.after:
        for table in change_tables(*summaries):
            console.print(table)
    return 0
