"""`npu-lab explain`: in words, where the modelled time of a kernel goes and what to change."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import terminal
from ..execution import EMULATED_SOCS
from .emulate import add_target, refuse, say_faults

_DESCRIPTION = """\
Say what bounds each kernel and what to change, costliest first, each remark with its source line: a scalar per row, dropped
double buffering, small transfers, discrete access, data loaded again, vector and scalar work. All of it is modelled.

Exit status 1 on a kernel that does not compile, that the emulator does not cover, or that it finds a fault in."""


def add(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser("explain", help="say what to change in a kernel, and where", description=_DESCRIPTION)
    add_target(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the remarks on every kernel of the chosen cases; only time is modelled, so that every shape is quick."""
    from ..compiler.cases import plan_cases
    from ..emulator.advice import advise
    from ..emulator.cases import FAULTS, emulate_file, time_case

    soc = (options.soc or EMULATED_SOCS)[0]
    console = terminal.console()
    emulations, faults = {}, []
    try:
        if options.target.endswith(".py"):
            run, emulations[options.target] = emulate_file(Path(options.target), soc, options.ceiling)
            faults += [*run.wrong, *map(str, run.findings)]
        else:
            for _, case, _ in plan_cases([options.target], [soc], options.case):
                try:
                    emulations[case] = time_case(options.target, case, soc, options.ceiling)
                except FAULTS as error:
                    faults.append(f"{case}: {str(error).strip()}")
    except (ValueError, NotImplementedError) as error:
        return refuse("explain", str(error))
    for case, emulation in emulations.items():
        for launch in emulation.launches:
            console.print(f"\n[bold]{launch.name}[/bold] {launch.launch.grid}, {case}")
            for advice in advise(launch, options.ceiling):
                where = f" at {advice.where}" if advice.where else ""
                console.print(f"  {advice.topic}{where}: {advice.text}", markup=False, highlight=False, soft_wrap=True)
    return say_faults(console, faults)
