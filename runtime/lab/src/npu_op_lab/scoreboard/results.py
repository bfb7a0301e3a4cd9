"""The table of results that each operator's README embeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..bench.records import Cell, Record, cells

_PASSES = ("forward", "backward", "full")
_GRADIENT_FREE = ("no-grad-forward",)


def results_of(operator: str, records: Iterable[Record]) -> str:
    """Markdown: per device, row and pass ours in ms at the smallest and largest size, with eager's and Liger's time over it."""
    speeds = [record for record in records if record.operator == operator and record.metric_name == "speed" and record.verified]
    if not speeds:
        return "No results yet: `nox -s scoreboard` makes them."
    found = {cell.key: cell for cell in cells(speeds)}
    ours = [cell for cell in found.values() if cell.record.kernel_provider == "ours"]
    modes = _PASSES if any(cell.record.kernel_operation_mode == "backward" for cell in ours) else _GRADIENT_FREE
    lines = ["| where | row | sizes | pass | ours, ms | eager | Liger | share of the roof |", "|---|---|---|---|---|---|---|---|"]
    for cell in _ends([cell for cell in ours if cell.record.kernel_operation_mode in modes]):
        record = cell.record
        where = f"{record.basis} on {record.gpu_name}"
        share = "–" if cell.roof_share is None else f"{100 * cell.roof_share:.0f} %"
        ratios = [_ratio(found.get((*cell.key[:-1], peer)), cell) for peer in ("eager", "liger")]
        size = f"{record.model}, {record.x_name} = {cell.x:g}" if isinstance(cell.x, float | int) else str(cell.x)
        columns = (where, f"`{record.kernel_name}`", size, record.kernel_operation_mode, f"{cell.median:.4g}", *ratios, share)
        lines.append(f"| {' | '.join(columns)} |")
    roofs = dict.fromkeys(
        f"{record.gpu_name}: {(record.roof_bytes_per_second or 0) / 1e9:.0f} GB/s ({record.roof_source})" for record in speeds
    )
    lines += ["", f"{speeds[0].dtype}; eager and Liger: their time over ours. Roof of {'; '.join(roofs)}.", _LABEL]
    return "\n".join(lines)


_LABEL = (
    "*Modelled* figures come from the compiled kernels by the emulator, launches included; no NPU ran them. "
    "*Measured* ones ran on that device."
)


def _ends(found: Sequence[Cell]) -> list[Cell]:
    """The smallest and the largest size of each sweep."""
    sweeps: dict[tuple[object, ...], list[Cell]] = {}
    for cell in found:
        record = cell.record
        key = record.basis, record.gpu_name, record.kernel_name, record.model, record.kernel_operation_mode
        sweeps.setdefault(key, []).append(cell)
    return [cell for sweep in sweeps.values() for cell in ([sweep[0], sweep[-1]] if len(sweep) > 1 else sweep)]


def _ratio(theirs: Cell | None, ours: Cell) -> str:
    return "–" if theirs is None else f"{theirs.median / ours.median:.2f}×"
