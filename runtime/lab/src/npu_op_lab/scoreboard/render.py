"""The tables as Markdown, HTML and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from .board import COLUMNS, Board, Mark, Row

_SIGNS = {"pass": "✓", "level": "≈", "fail": "✗", "refused": "refused by the oracle", "failed": "failed", "none": "–"}
_COLOURS = {"pass": "#b7e1b0", "level": "#e3efb0", "fail": "#f4b6ae", "refused": "#f4b6ae", "failed": "#f4b6ae", "none": "#f2f2f2"}
LEGEND = (
    "Each cell is the worst ratio over the sizes, theirs over ours. Against eager PyTorch or Hugging Face: ✓ above 1 (memory: not above), "
    "✗ not; ≈ is at least 0.95 where eager is one kernel, which the model grants full bandwidth. Against Liger-Kernel's Ascend kernels (on "
    "a GPU, its Triton kernels): ✓ above 1. failed: ours raised at a size or was not run. RFC: the marks of RFC #1159 for Liger-Kernel "
    "0.7.0, measured on an Atlas 900 A2."
)


def text_of(mark: Mark) -> str:
    """A sign and the ratio, cut, never rounded up to a pass."""
    if mark.ratio is None:
        return _SIGNS[mark.kind]
    digits = 3 if 0.995 <= mark.ratio < 1 else 2
    cut = int(mark.ratio * 10**digits) / 10**digits
    return f"{_SIGNS[mark.kind]} {cut:.{digits}f}×"


def rfc_of(row: Row) -> str:
    return " ".join("✓" if good else "✗" for good in row.rfc) or "–"


def about(board: Board) -> str:
    """Where the figures of a table come from."""
    beside = " No NPU ran any of it: times come from the compiled kernels by the emulator." if board.basis == "modelled" else ""
    return f"Sizes: {board.sizes}. Roof: {board.roof}. Stack: {board.stack}.{beside}"


def markdown(boards: Sequence[Board]) -> str:
    """A section for each device."""
    lines: list[str] = []
    for board in boards:
        lines += [f"**{board.title}.** {board.summary}", ""]
        lines.append("| kernel | " + " | ".join(COLUMNS) + " | Liger: " + " | Liger: ".join(COLUMNS) + " | RFC |")
        lines.append("|---" * (2 + 2 * len(COLUMNS)) + "|")
        for row in board.rows:
            marks = [row.missing, *[""] * 7] if row.missing else [_markdown_mark(mark) for mark in (*row.eager, *row.liger)]
            lines.append("| " + " | ".join([f"`{row.kernel}`", *marks, rfc_of(row)]) + " |")
        lines += ["", about(board), ""]
    return "\n".join([*lines, LEGEND])


def _markdown_mark(mark: Mark) -> str:
    return f"**{text_of(mark)}**" if mark.kind in ("fail", "refused", "failed") else text_of(mark)


def html(boards: Sequence[Board]) -> str:
    """A page of its own."""
    sections = "\n".join(map(_section, boards))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>npu-ops scoreboard</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ border: 1px solid #ccc; padding: .25rem .5rem; text-align: center; }}
th:first-child, td:first-child {{ text-align: left; }}
{" ".join(f".{kind} {{ background: {colour}; }}" for kind, colour in _COLOURS.items())}
</style></head><body>
<h1>npu-ops scoreboard</h1>
<p>{escape(LEGEND)}</p>
{sections}
</body></html>
"""


def _section(board: Board) -> str:
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    rows = "\n".join(map(_html_row, board.rows))
    return f"""<h2>{escape(board.title)}</h2>
<p>{escape(board.summary)}</p>
<table>
<tr><th rowspan="2">kernel</th><th colspan="4">against eager</th><th colspan="4">against Liger</th><th rowspan="2">RFC</th></tr>
<tr>{head}{head}</tr>
{rows}
</table>
<p>{escape(about(board))}</p>"""


def _html_row(row: Row) -> str:
    if row.missing:
        marks = f'<td class="none" colspan="8">{escape(row.missing)}</td>'
    else:
        marks = "".join(f'<td class="{mark.kind}">{escape(text_of(mark))}</td>' for mark in (*row.eager, *row.liger))
    return f"<tr><td>{escape(row.kernel)}</td>{marks}<td>{rfc_of(row)}</td></tr>"


def picture(board: Board, file: Path) -> None:
    """The table of one device as a PNG."""
    line, top = 0.29, 0.75
    height = line * (len(board.rows) + 1.7)
    figure = Figure(figsize=(11.5, height + top))
    axis = figure.add_axes((0.01, 0.01, 0.98, height / (height + top)))
    axis.axis("off")
    columns = ["kernel", *(f"eager:\n{column}" for column in COLUMNS), *(f"Liger:\n{column}" for column in COLUMNS), "RFC:\nLiger 0.7.0"]
    texts, colours = [], []
    for row in board.rows:
        marks = (*row.eager, *row.liger)
        texts.append([row.kernel, *([row.missing, *[""] * 7] if row.missing else map(text_of, marks)), rfc_of(row)])
        colours.append(["white", *(_COLOURS[mark.kind] for mark in marks), "white"])
    table = axis.table(
        texts, cellColours=colours, colLabels=columns, colWidths=[0.24, *[0.083] * 8, 0.096], bbox=Bbox.unit(), cellLoc="center"
    )
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    for (number, column), cell in table.get_celld().items():
        cell.set_edgecolor("#c4c4c4")
        cell.set_height(1.7 * line if number == 0 else line)
        if number == 0:
            cell.set_text_props(weight="bold")
        elif column == 0:
            cell.set_text_props(ha="left")
        elif board.rows[number - 1].missing and column < 9:
            # The cells of a table span no columns: without borders the row reads as one.
            cell.visible_edges = "TB"
            cell.set_text_props(color="#777777", ha="left")
    figure.suptitle(f"{board.title}: worst ratio over the sizes, theirs over ours\n{board.summary}", fontsize=10, y=0.99, va="top")
    figure.savefig(file, dpi=130)
