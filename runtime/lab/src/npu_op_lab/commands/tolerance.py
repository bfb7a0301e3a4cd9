"""`npu-lab tolerance`: the error of an operator's kernels and of eager PyTorch, per output and gradient."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.progress import track

from .. import operators, terminal
from ..execution import Mode, available_modes
from ..tolerance import RTOL, summary, table

_DESCRIPTION = f"""\
Run the cases of an operator and print, for every output and gradient, the maximum and RMS error of the kernel and of
eager PyTorch against fp64, and the smallest atol at which torch.testing.assert_close with rtol={RTOL:g} would accept each.

Errors are measured: of the kernel where it runs here, on an NPU or a GPU, else in the emulator of an Ascend SoC (the
kernel as compiled for it) or, with TRITON_INTERPRET=1, in Triton's interpreter. Exit status 1 when the oracle rejects a result."""


def add(subparsers: Any) -> None:
    """Declare the subcommand."""
    kernels = [mode.name for mode in _modes()]
    parser = subparsers.add_parser(
        "tolerance",
        help="print the error of an operator and of eager PyTorch against fp64",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("operator", choices=operators.names())
    parser.add_argument("--case", action="append", help="name of a spec case, may be repeated (default: every executed one)")
    parser.add_argument("--mode", choices=kernels, help="where the kernels run (default: the first of these)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; 1 if the oracle rejects a result."""
    spec = operators.load(options.operator)
    known = {case.name: case for case in spec.cases if "values" in case.tags}
    unknown = [name for name in options.case or () if name not in known]
    if unknown:
        return _refuse(f"--case must be one of {', '.join(known)} (got {', '.join(unknown)})")
    modes = _modes()
    if not modes:
        return _refuse("no kernel can run here: install npu-op-lab[compiler] for the emulator, or set TRITON_INTERPRET=1")
    mode = next((mode for mode in modes if mode.name == options.mode), modes[0])
    cases = [known[name] for name in options.case or known]
    console = terminal.console()
    rows = [row for case in track(cases, "running", console=console, transient=True) for row in summary(spec, case, mode)]
    console.print(table(f"{spec.name}, kernels in {mode.name}", rows))
    rejected = [row for row in rows if not row.verdict.passed]
    for row in rejected:
        console.print(f"{row.case}: {row.verdict}", style="red", markup=False)
    return int(bool(rejected))


def _modes() -> list[Mode]:
    """Where kernels compute results here, the most telling first."""
    order = ("npu", "cuda", "emulator", "interpreter")
    modes = [mode for mode in available_modes() if mode.kernels and mode.executes]
    return sorted(modes, key=lambda mode: order.index(mode.kind))


def _refuse(reason: str) -> int:
    print(f"npu-lab tolerance: {reason}", file=sys.stderr)
    return 2
