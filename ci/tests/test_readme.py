"""What READMEs promise works: their Python examples, and the command that CI shares with the reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import affected
from readme import examples
from repo import ROOT, distributions

PAGES = [ROOT / path for path in affected.examples(ROOT) if path.endswith(".md")]
READMES = [*PAGES, *(found.folder / "README.md" for found in distributions())]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_run(readme: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "ci" / "readme.py"), str(readme)], check=True)


def test_a_failing_example_fails(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n")
    assert examples(readme) == ["x = 1\n", "assert x == 2\n"]
    assert subprocess.run([sys.executable, str(ROOT / "ci" / "readme.py"), str(readme)], check=False, capture_output=True).returncode == 1
