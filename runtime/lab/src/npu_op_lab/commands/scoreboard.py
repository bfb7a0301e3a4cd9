"""`npu-lab scoreboard`: the RFC's table, generated anew or checked."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from npu_op_runtime.spec import MODELS

from .. import operators, terminal
from ..bench import BadRecords, Outcome, points_of, read, run
from ..bench.backends import backends_here
from ..bench.points import TOKENS
from ..bench.providers import Absent

_SOCS = ("Ascend910B4", "Ascend910B3")
# The sizes of Liger-Kernel's RFC #1159.
_MODEL = "llama_3_8b"
_MODES = ("no-grad-forward", "forward", "backward", "full")
_PROVIDERS = ("ours", "eager", "liger")
_DESCRIPTION = """\
Generate the table of Liger-Kernel's RFC #1159 for the operators of this repository, modelled, from records: docs/scoreboard/ (records,
HTML, PNG) and the tables that README.md and docs/benchmarks.md embed. Run it in the root of the repository: its operators are those
below packages/. Exit status 1 when ours has no figures somewhere, because it raised or because the oracle refused it.

--from adds saved records: those of a device become a table of their own, and stay in it until others of that device come.
--check runs nothing: exit status 1 when the checked-in table is older than the kernels, the compiler or the emulator it describes,
or lacks figures of ours."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "scoreboard",
        help="generate or check the table of Liger's RFC",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "operators", nargs="*", metavar="operator", help="only their figures are made anew, those of others stay (default: all)"
    )
    parser.add_argument("--check", action="store_true", help="only say whether the checked-in table is still true")
    parser.add_argument("--soc", action="append", help=f"what is modelled, may be repeated (default: {', '.join(_SOCS)})")
    parser.add_argument("--model", action="append", choices=list(MODELS), help=f"may be repeated (default: {_MODEL}, the RFC's sizes)")
    parser.add_argument(
        "--from", dest="saved", action="append", type=Path, metavar="FILE", help="saved records of a device to add, may be repeated"
    )
    parser.set_defaults(run=scoreboard)


def scoreboard(options: argparse.Namespace) -> int:
    """Generate or check."""
    from ..scoreboard import boards, failures, measured_before, modelled_before, packages_of, stale, write_files
    from ..scoreboard.render import markdown

    root = Path.cwd()
    try:
        names = list(packages_of(root))
    except ValueError as error:
        print(f"npu-lab scoreboard: {error}", file=sys.stderr)
        return 2
    if options.check:
        reasons = stale(root)
        for reason in reasons:
            print(f"npu-lab scoreboard: {reason}", file=sys.stderr)
        if reasons:
            print("npu-lab scoreboard: generate it anew: nox -s scoreboard", file=sys.stderr)
        return int(bool(reasons))
    chosen = options.operators or names
    try:
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise ValueError(f"operator must be below packages/: {', '.join(names)} (got {', '.join(unknown)})")
        strangers = [name for name in chosen if name not in operators.names()]
        if strangers:
            raise ValueError(f"below packages/ but not installed: {', '.join(strangers)} (pip install --no-deps -e packages/<operator>)")
        others = modelled_before(root, chosen) if options.operators else []
        saved = measured_before(root, [record for file in options.saved or () for record in read(file)])
        outcomes = list(_outcomes(options.soc or _SOCS, chosen, options.model or [_MODEL]))
        modelled = [*others, *(record for outcome in outcomes for record in outcome.records)]
        # As a run of all has them.
        devices = list(dict.fromkeys(record.gpu_name for record in modelled))
        modelled.sort(key=lambda record: (devices.index(record.gpu_name), names.index(record.operator)))
        records = modelled + saved
        written = write_files(records, root)
    except (BadRecords, ValueError, Absent) as error:
        print(f"npu-lab scoreboard: {error}", file=sys.stderr)
        return 2
    console = terminal.console()
    console.print(Markdown(markdown(boards(records))))
    for note in dict.fromkeys(note for outcome in outcomes for note in outcome.notes):
        console.print("note:", note, style="yellow", markup=False)
    for failure in dict.fromkeys(failure for outcome in outcomes for failure in outcome.failed):
        console.print("FAILED", failure, style="red", markup=False)
    for file in written:
        console.print(f"written: {file.relative_to(root)}", markup=False)
    missing = list(failures(records, names))
    for failure in missing:
        print(f"npu-lab scoreboard: {failure}", file=sys.stderr)
    return int(bool(missing))


def _outcomes(socs: Sequence[str], names: Sequence[str], models: Sequence[str]) -> Iterator[Outcome]:
    """Every operator on every SoC, in processes of their own; records in the order of the operators."""
    work = [(soc, name) for soc in socs for name in names]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # spawn: a forked child would inherit torch's thread pools in an unknown state.
    pool = ProcessPoolExecutor(min(os.cpu_count() or 1, len(work)) or 1, mp_context=get_context("spawn"))
    with pool, Progress(*columns, transient=True) as progress:
        results = pool.map(_run, *zip(*[(soc, name, tuple(models)) for soc, name in work], strict=True))
        yield from progress.track(results, total=len(work), description="modelling")


def _run(soc: str, operator: str, models: Sequence[str]) -> Outcome:
    (backend,) = backends_here([soc])
    spec = operators.load(operator)
    # An operator that none of the models has is shown at the first that does.
    shown = [model for model in models if model in spec.models] or spec.models[:1]
    return run(backend, points_of(spec, shown, TOKENS), _PROVIDERS, _MODES)
