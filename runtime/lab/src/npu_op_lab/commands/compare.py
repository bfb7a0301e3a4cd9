"""`npu-lab compare`: two result files, or two git refs measured in turns."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import terminal
from ..bench import BadRecords, Record, compare, read
from ..bench.compare import table
from ..bench.liger_csv import read_liger
from ..bench.refs import RefFailed, measure_refs

_DESCRIPTION = """\
Compare two runs figure by figure: better, worse, or noise, with the spread.

A and B are two result files (JSON lines, or a CSV of Liger-Kernel's benchmarks), or two git refs. Refs are checked out into
throw-away worktrees and measured in turns in one run, A B B A ...; name the operators, and options of `npu-lab bench`, after --bench:

  npu-lab compare results/before.jsonl results/after.jsonl
  npu-lab compare main HEAD --bench geglu --model llama_3_8b --tokens 2048,8192

Exit status 1 when a figure of ours got worse, 2 for a file or ref that cannot be read."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "compare",
        help="compare two result files or two git refs: better, worse or noise",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="A")
    parser.add_argument("after", metavar="B")
    parser.add_argument("--rounds", type=_rounds, default=3, help="times that each ref is measured (default: 3)")
    parser.add_argument("--bench", nargs=argparse.REMAINDER, default=[], help="for refs, last: operators and options of `npu-lab bench`")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare and print."""
    names = options.before, options.after
    files = [Path(name).is_file() for name in names]
    try:
        if all(files):
            before, after = (_read(Path(name)) for name in names)
        elif any(files) or not options.bench:
            what = [name for name, file in zip(names, files, strict=True) if not file]
            raise BadRecords(f"{', '.join(what)}: no such file; for two git refs name the operators after --bench")
        else:
            before, after = measure_refs(names, ["--peers", "none", *options.bench], options.rounds)
    except (BadRecords, RefFailed) as error:
        print(f"npu-lab compare: {error}", file=sys.stderr)
        return 2
    changes = compare(before, after)
    if not changes:
        print(
            "npu-lab compare: the two have no figure in common: device, kernel, model, size, pass and provider must match", file=sys.stderr
        )
        return 2
    console = terminal.console()
    console.print(table(changes, names))
    counts = {verdict: sum(change.verdict == verdict for change in changes) for verdict in ("better", "worse", "noise")}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(any(change.verdict == "worse" and change.after.record.kernel_provider == "ours" for change in changes))


def _rounds(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0 (got {text!r})")
    return int(text)


def _read(file: Path) -> list[Record]:
    return read_liger(file) if file.suffix == ".csv" else read(file)
