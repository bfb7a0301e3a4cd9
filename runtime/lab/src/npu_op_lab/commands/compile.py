"""`npu-lab compile`: what the vendor's compiler makes of an operator's kernels, or of the user's own, for each SoC."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from npu_op_runtime.soc import GATE_SOCS, get_soc

from .. import operators, terminal

if TYPE_CHECKING:  # its stack is loaded when the command runs, not for --help
    from ..compiler import LoopReport
    from ..compiler.cases import CaseReport

_DESCRIPTION = """\
Compile kernels for Ascend SoCs with the vendor's compiler, on any machine, and report what it made of them:
UB in use, double buffering, scalar loops, vector operations and DMA bytes per loop trip.

The target is an installed operator (rmsnorm), whose spec cases are compiled forward and backward, or a Python file of
your own (my_kernel.py). A file is imported and its function `launch`, else `main`, is called without arguments; a file
that has neither is run as a script. It launches its kernels as usual, kernel[grid](...), on CPU tensors; they are
compiled and reported, not executed.

Exit status 1 on a violation: double buffering lost on a streaming loop, a scalar loop or a scalar synchronisation per
trip in it, UB overflow, a kernel that does not compile."""

_COLUMNS = ("kernel", "SoC", "cases", "UB %", "hot loop", "buffers", "KiB in", "KiB out", "piece B", "vector", "syncs", "scalar loops")
_LEGEND = """\
Read from the compiled IR, per trip of a whole tile; nothing was executed. buffers: taking turns, of each load;
piece: contiguous bytes of the largest transfer; vector: operations; syncs: waits of or on the scalar unit."""


def add(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "compile",
        help="compile kernels for Ascend SoCs and report UB, double buffering, scalar loops",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", type=_target, help=f"an installed operator ({', '.join(operators.names()) or 'none is'}) or a .py file")
    parser.add_argument(
        "--soc", action="append", type=_soc, help=f"may be repeated (default: the spec's; for a file {', '.join(GATE_SOCS)})"
    )
    parser.add_argument("--case", action="append", help="name of a spec case, may be repeated (default: all)")
    parser.add_argument("--jobs", type=_positive, help="processes (default: one per core)")
    parser.add_argument("--json", type=_output, metavar="FILE", help="write the reports as JSON too")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compile, print the table, write the JSON; 1 if anything violates the gate."""
    from ..compiler.cases import compile_cases, plan_cases
    from ..compiler.user_file import compile_file

    try:
        if options.target.endswith(".py"):
            reports = compile_file(Path(options.target), options.soc or GATE_SOCS)
        else:
            plan_cases([options.target], options.soc, options.case)
    except ValueError as error:
        return _refuse(str(error))
    if not options.target.endswith(".py"):
        reports = compile_cases([options.target], options.soc, options.case, options.jobs)
    if not any(report.kernels or report.violations for report in reports):
        return _refuse(f"{options.target} launched no kernel on CPU tensors")
    if options.json:
        options.json.write_text(json.dumps([_as_json(report) for report in reports], indent=1) + "\n")
    console = terminal.console()
    console.print(_table(reports))
    console.print(_LEGEND)
    console.print(_summary(reports), highlight=False)
    violations = defaultdict(list)
    for report in reports:
        for violation in report.violations:
            violations[violation].append(report.case)
    for violation, cases in sorted(violations.items()):
        where = f"(case {_in_cases(cases)})" if any(cases) else ""
        console.print("VIOLATION", violation, where, style="red", markup=False, soft_wrap=True)
    return 1 if violations else 0


def _refuse(reason: str) -> int:
    print(f"npu-lab compile: {reason}", file=sys.stderr)
    return 2


def _soc(name: str) -> str:
    try:
        return get_soc(name).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 (got {text!r})")
    return int(text)


def _output(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in a folder that exists (got {text!r})")
    return path


def _target(text: str) -> str:
    if not (text.endswith(".py") and Path(text).is_file()) and text not in operators.names():
        raise argparse.ArgumentTypeError(
            f"must be a .py file or an installed operator, {', '.join(operators.names()) or 'none is'} (got {text!r})"
        )
    return text


def _as_json(report: CaseReport) -> dict[str, Any]:
    return {**asdict(report), "kernels": [{**asdict(kernel), "double_buffered": kernel.double_buffered} for kernel in report.kernels]}


def _summary(reports: list[CaseReport]) -> str:
    seconds = [kernel.seconds for kernel in {kernel.key: kernel for report in reports for kernel in report.kernels}.values()]
    return (
        f"{len(reports)} calls, {len(seconds)} kernels; the vendor's compiler took {sum(seconds):.1f} s in all, "
        f"{max(seconds, default=0.0):.2f} s for the slowest kernel (measured, when each was compiled)"
    )


def _table(reports: list[CaseReport]) -> Table:
    """A row per hot loop of each kernel; kernels that differ by the SoC alone share it."""
    found = defaultdict(list)
    for report in reports:
        for kernel in report.kernels:
            found[repr((kernel.kernel, kernel.ub_bytes, kernel.loops))].append((kernel, report.case))
    everywhere = {report.soc for report in reports}
    table = Table(*(Column(name, overflow="fold") for name in _COLUMNS))
    for same in found.values():
        kernel = same[0][0]
        socs = {other.soc for other, _ in same}
        where = f"all {len(socs)}" if socs == everywhere and len(socs) > 1 else ", ".join(sorted(socs))
        cells = [kernel.kernel, where, _in_cases(list(dict.fromkeys(case for _, case in same))), f"{100 * kernel.ub_share:.0f}"]
        scalar = str(len(kernel.scalar_loops))
        for loop in kernel.hot_loops:
            table.add_row(*cells, *_loop_cells(loop), scalar)
            cells, scalar = [""] * len(cells), ""
        if not kernel.hot_loops:
            table.add_row(*cells, "none", *[""] * (len(_COLUMNS) - len(cells) - 2), scalar)
    return table


def _in_cases(names: Sequence[str]) -> str:
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0]


def _loop_cells(loop: LoopReport) -> list[str]:
    buffers = "/".join(str(transfer.buffers) for transfer in loop.transfers if transfer.direction == "in")
    largest = max(loop.transfers, key=lambda transfer: transfer.bytes)
    kib = [f"{moved / 1024:.1f}" for moved in (loop.bytes_in, loop.bytes_out)]
    return [loop.line, buffers, *kib, str(largest.piece_bytes), str(sum(loop.vector_ops.values())), str(loop.scalar_syncs)]
