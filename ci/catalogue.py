"""Writes README's table of operators from what their metadata says. Run: python ci/catalogue.py"""

from __future__ import annotations

import re
from pathlib import Path

from repo import ROOT, operators

_TABLE = re.compile(r"(?<=<!-- operators: python ci/catalogue.py -->\n).*?(?=<!-- end of operators -->)", re.DOTALL)


def catalogued(root: Path) -> str:
    """README as it should be."""
    rows = [f"| [{found.name}](packages/{found.folder.name}) | {found.project['description']} |\n" for found in operators(root)]
    table = "".join(["| Package | Is |\n|---|---|\n", *rows])
    return _TABLE.sub(lambda _: table, (root / "README.md").read_text())


if __name__ == "__main__":
    (ROOT / "README.md").write_text(catalogued(ROOT))
