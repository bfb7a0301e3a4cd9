"""`npu-lab emulate`: run an operator's kernels, or the user's own, on an emulated Ascend chip."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table

from .. import operators, terminal
from ..execution import EMULATED_SOCS
from .compile import _output, _positive, _soc, _target

if TYPE_CHECKING:  # its stack is loaded when the command runs, not for --help
    from ..emulator.cases import CaseRun

_DESCRIPTION = """\
Compile kernels with the vendor's compiler and execute the result in the emulator: values, faults, modelled time.

The target is an installed operator (rmsnorm), whose spec cases run forward and backward, or a Python file of your own,
called as `npu-lab compile` calls it. A case tagged "values" is computed and judged by the oracle, a benchmark shape is
only timed. Every time is modelled, none measured.

Exit status 1 on a wrong value or a fault: UB read before it is written, a race of two pipes or two programs, a deadlock,
an access out of bounds, an operation that the emulator does not cover."""

_COLUMNS = ("kernel", "us", "bound", "roof", "HBM", "V", "MTE2", "MTE3", "S")
_LEGEND = """\
Modelled, not measured; HBM at the {ceiling} ceiling. Shares of the time in percent: roof is the larger of HBM and vector time;
V, MTE2, MTE3 and S are the busy pipes of the slowest core. A call's own line adds PyTorch's kernels and {launch:.0f} us a launch."""


def add(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "emulate",
        help="execute compiled kernels without an NPU: values, faults, modelled time",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    parser.add_argument("--jobs", type=_positive, help="processes (default: one per core)")
    parser.add_argument("--trace", type=_output, metavar="FILE", help="write a Chrome/Perfetto trace of one case as JSON")
    parser.add_argument("--png", type=_output, metavar="FILE", help="draw the time line of the first tiles of one case")
    parser.set_defaults(run=run)


def add_target(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what runs on what."""
    parser.add_argument("target", type=_target, help=f"an installed operator ({', '.join(operators.names()) or 'none is'}) or a .py file")
    parser.add_argument("--soc", action="append", type=_soc, help=f"may be repeated (default: {', '.join(EMULATED_SOCS)})")
    parser.add_argument("--case", action="append", help="name of a spec case, may be repeated (default: all)")
    parser.add_argument(
        "--ceiling", choices=("measured", "cann"), default="measured", help="HBM bandwidth that the model grants (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Run, print the table, write what was asked for; 1 if anything is wrong."""
    from ..emulator.cases import emulate_file, run_cases, time_case
    from ..emulator.costs import table as costs
    from ..emulator.picture import write_png, write_trace

    socs = options.soc or list(EMULATED_SOCS)
    is_file = options.target.endswith(".py")
    drawn = options.trace or options.png
    if drawn and (len(socs) > 1 or not is_file and len(options.case or ()) != 1):
        return refuse("emulate", "--trace and --png draw one call: name one --soc, and for an operator one --case")
    emulation = None
    try:
        if is_file:
            runs = []
            for soc in socs:
                result, emulation = emulate_file(Path(options.target), soc, options.ceiling)
                runs.append(result)
        else:
            runs = run_cases(options.target, socs, options.case, options.ceiling, options.jobs)
    except (ValueError, NotImplementedError) as error:
        return refuse("emulate", str(error))
    if drawn and not any(run.wrong for run in runs):
        emulation = emulation or time_case(options.target, options.case[0], socs[0], options.ceiling)
        if options.trace:
            write_trace(options.trace, emulation.launches, options.ceiling)
        if options.png:
            write_png(options.png, emulation.launches, options.ceiling)
    console = terminal.console()
    console.print(_table(runs))
    console.print(_LEGEND.format(ceiling=options.ceiling, launch=1e6 * costs()["launch_seconds"]), soft_wrap=True)
    console.print(f"{len(runs)} calls, {sum(run.executed for run in runs)} of them executed.")
    faults = [f"{run.source} {run.case} {run.soc}: {fault}" for run in runs for fault in (*run.wrong, *map(str, run.findings))]
    if drawn and any(run.wrong for run in runs):
        faults.append("nothing was drawn")
    return say_faults(console, faults)


def say_faults(console: Console, faults: list[str]) -> int:
    """Print the faults; the exit status that they make."""
    for fault in faults:
        console.print("FAULT", fault, style="red", markup=False, soft_wrap=True)
    return 1 if faults else 0


def refuse(command: str, reason: str) -> int:
    """Say what is wrong with the arguments."""
    print(f"npu-lab {command}: {reason}", file=sys.stderr)
    return 2


def _table(runs: list[CaseRun]) -> Table:
    table = Table(*(Column(name, overflow="fold", justify="right" if at else "left") for at, name in enumerate(_COLUMNS)))
    for run in runs:
        table.add_row(f"[bold]{run.case or run.source}[/bold] {run.soc.removeprefix('Ascend')}", f"{run.seconds * 1e6:.1f}")
        for kernel in run.kernels:
            shares = (kernel.roof_share, kernel.hbm_share, *(kernel.busy[pipe] for pipe in ("V", "MTE2", "MTE3", "S")))
            table.add_row(f"  {kernel.name}", f"{kernel.seconds * 1e6:.1f}", kernel.bound, *(f"{100 * share:.0f}" for share in shares))
        table.add_section()
    return table
