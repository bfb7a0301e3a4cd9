"""actionlint sees what is wrong with a workflow, and says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from repo import ROOT

VALID = """\
on: push
jobs:
  test:
    runs-on: [self-hosted, ascend-910b]
    steps:
      - run: echo "${{ github.ref }}"
"""
BROKEN = {
    "expression": ("github.ref", "github.reff", 6, 'property "reff" is not defined'),
    "runner": ("ascend-910b", "ascend-910c", 4, 'label "ascend-910c" is unknown'),
    "syntax": ("    steps:", "    stepz:", 5, 'unexpected key "stepz"'),
    "need": ("    steps:", "    needs: nothing\n    steps:", 3, 'needs job "nothing" which does not exist'),
}


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "ci/workflows.py", *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


# One test, for the first call installs actionlint, which two at once must not.
def test_a_broken_workflow_fails_and_names_the_line(tmp_path: Path) -> None:
    done = lint()
    assert (done.returncode, done.stdout) == (0, "actionlint: 0 problems in 4 workflows\n"), done.stdout + done.stderr

    (tmp_path / "valid.yml").write_text(VALID)
    for name, (before, after, line, told) in BROKEN.items():
        file = tmp_path / f"{name}.yml"
        assert before in VALID
        file.write_text(VALID.replace(before, after))
        done = lint(tmp_path / "valid.yml", file)
        assert done.returncode == 1
        assert "valid.yml" not in done.stdout
        assert any(text.startswith(f"{file}:{line}:") and told in text for text in done.stdout.splitlines()), done.stdout
    assert lint(tmp_path / "missing.yml").returncode == 1
