"""`npu-lab bench`: an operator against eager PyTorch, torch.compile, the vendor's op and Liger-Kernel."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from npu_op_runtime.soc import SOCS, get_soc
from npu_op_runtime.spec import MODELS

from .. import operators, terminal
from ..bench import MODES, PROVIDERS, Outcome, points_of, run, write
from ..bench.backends import backends_here
from ..bench.measurement import Backend
from ..bench.points import TOKENS, Point
from ..bench.providers import Absent
from ..bench.table import tables, violations

# Eager is the baseline of every table.
_PEERS = tuple(name for name in PROVIDERS if name not in ("ours", "eager"))

_DESCRIPTION = """\
Benchmark an operator at the shapes of published models, forward and backward, speed and peak memory.

On an NPU or a CUDA GPU it is measured. On any other machine it is modelled for an Ascend SoC: the kernels are compiled by the
vendor's compiler for those very shapes and timed by the emulator, eager PyTorch is modelled at full bandwidth, and the results
of the same width at fewer rows are computed in the emulator and judged by the oracle. A CPU's time is never shown.

A figure is shown only after the provider's results passed the oracle in the same run; exit status 1 when one of ours did not, or
raised at any size, 2 for a wrong argument. The records go to a file of JSON lines (schema: npu_op_lab/bench/record.schema.json)."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="benchmark an operator: measured on an NPU or GPU, modelled for an Ascend SoC elsewhere",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("operator", nargs="+", help=f"{', '.join(operators.names()) or 'none is installed'}; may be several")
    parser.add_argument("--model", action="append", help=f"may be repeated (default: those of {', '.join(MODELS)} that have the operator)")
    parser.add_argument("--tokens", type=_numbers, help=f"numbers separated by commas (default: {','.join(map(str, TOKENS))})")
    parser.add_argument(
        "--sweep", choices=("token_length", "model_config"), default="token_length", help="along tokens, or along models at 2048 tokens"
    )
    parser.add_argument("--mode", action="append", choices=MODES, help="may be repeated (default: all)")
    parser.add_argument(
        "--peers", type=_peers, default=["eager", *_PEERS], help=f"besides eager, of {','.join(_PEERS)}; none: ours alone (default: all)"
    )
    parser.add_argument("--soc", action="append", help=f"what is modelled, may be repeated: {', '.join(SOCS)} (default: Ascend910B4)")
    parser.add_argument(
        "--ceiling", choices=("measured", "cann"), default="measured", help="bandwidth that is modelled (default: measured)"
    )
    parser.add_argument("--plot", action="store_true", help="draw a PNG beside the records")
    parser.add_argument("--out", type=_folder, default=Path("results"), help="folder of the records (default: results)")
    parser.set_defaults(run=bench)


def bench(options: argparse.Namespace) -> int:
    """Run, print, write."""
    console = terminal.console()
    tokens = options.tokens or ([2048] if options.sweep == "model_config" else TOKENS)
    status = 0
    points: dict[str, list[Point]] = {}
    refused: dict[str, None] = {}  # a wrong name is wrong for every model: said once
    for name in options.operator:
        try:
            spec = operators.load(name)
        except ValueError as error:
            refused[str(error)] = None
            continue
        for model in options.model or spec.models:
            try:
                points[name] = points.get(name, []) + points_of(spec, [model], tokens)
            except ValueError as error:  # the rest goes on
                refused[str(error)] = None
    for message in refused:
        status = _refuse(message)
    try:
        backends = backends_here([get_soc(name).name for name in options.soc or ()], options.ceiling)
    except (ValueError, Absent) as error:
        return _refuse(str(error))
    for name, swept in points.items():
        outcomes = [_run(console, backend, swept, options) for backend in backends]
        records = [record for outcome in outcomes for record in outcome.records]
        for table in tables(records):
            console.print(table)
        for violation in violations(records):
            console.print("VIOLATION", violation, style="red", markup=False)
        for backend, outcome in zip(backends, outcomes, strict=True):
            console.print(f"{backend.place.label}. Verified in this run: {_verified(outcome)}", markup=False)
            for note in outcome.notes:
                console.print("note:", note, style="yellow", markup=False)
            for failure in outcome.failed:
                console.print("FAILED", failure, style="red", markup=False)
        file = options.out / f"{name}-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}.jsonl"
        write(records, file)
        console.print(f"records: {file}", markup=False)
        if options.plot:
            from ..bench.plots import plot

            for picture in plot(records, file.with_suffix("")):
                console.print(f"plot: {picture}", markup=False)
        ours = [record for record in records if record.kernel_provider == "ours"]
        if not ours or not all(record.verified for record in ours):
            status = status or 1
    return status


def _refuse(message: str) -> int:
    print(f"npu-lab bench: {message}", file=sys.stderr)
    return 2


def _run(console: Console, backend: Backend, points: list[Point], options: argparse.Namespace) -> Outcome:
    providers = ["ours", *options.peers]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True, console=console) as progress:
        task = progress.add_task(backend.place.device, total=len(points) * len(providers))
        return run(backend, points, providers, options.mode or MODES, lambda what: progress.update(task, advance=1, description=what))


def _verified(outcome: Outcome) -> str:
    found = {record.kernel_provider: record for record in outcome.records if record.verified}
    return "; ".join(f"{name} ({record.verified_by['how']})" for name, record in found.items() if record.verified_by) or "nothing"


def _folder(text: str) -> Path:
    if text.endswith(".jsonl") or Path(text).is_file():
        raise argparse.ArgumentTypeError(f"must be a folder, in which each run writes a file of its own (got {text!r})")
    return Path(text)


def _numbers(text: str) -> list[int]:
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be whole numbers above 0, separated by commas (got {text!r})")
    return [int(part) for part in text.split(",")]


def _peers(text: str) -> list[str]:
    if text == "none":
        return []
    unknown = [name for name in text.split(",") if name not in _PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(_PEERS)} (got {', '.join(unknown)})")
    return ["eager", *text.split(",")]
