"""Makes a new operator from ci/template, green as it comes. Run: python ci/new_op.py my-op

The template is an operator that works, x * sigmoid(x), called my-op; CI makes one from it, and builds, tests and compiles that.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from catalogue import catalogued
from repo import ROOT, distributions

TEMPLATE = ROOT / "ci" / "template"
# Extras of npu-ops that are no operators.
RESERVED = ("all", "ascend", "cuda")


def instantiate(root: Path, name: str) -> list[Path]:
    """Writes the operator and its page, and renews the table of the root README; returns what was made.

    Raises:
        ValueError: the name cannot be one, or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ValueError(f"name must be lower-case words with dashes, such as cross-entropy (got {name!r})")
    taken = [*RESERVED, *(found.short for found in distributions(root))]
    folder, page = root / "packages" / name, root / "docs" / "operators" / f"{name}.md"
    if name in taken or folder.exists() or page.exists():
        raise ValueError(f"{name!r} is taken (taken are: {', '.join(taken)})")

    words = name.split("-")
    spellings = {"my-op": name, "my_op": "_".join(words), "MyOp": "".join(map(str.capitalize, words))}

    def spelled(text: str) -> str:
        return re.sub("|".join(spellings), lambda match: spellings[match[0]], text)

    files = [path for path in (TEMPLATE / "my-op").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    targets = {path: folder / spelled(path.relative_to(TEMPLATE / "my-op").as_posix()) for path in files}
    for path, target in {**targets, TEMPLATE / "my-op.md": page}.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(spelled(path.read_text()))
    shutil.copy(root / "LICENSE", folder)
    (root / "README.md").write_text(catalogued(root))
    # The order of imports and the breaks of lines depend on the name.
    for command in (["check", "--fix-only"], ["format"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, "--quiet", str(folder)], cwd=root, check=True)
    return [folder, page]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="short name, lower-case words with dashes")
    name = parser.parse_args().name
    try:
        made = instantiate(ROOT, name)
    except ValueError as error:
        print(f"new-op: {error}", file=sys.stderr)
        return 2
    print(f"made {', '.join(str(path.relative_to(ROOT)) for path in made)}: an operator that works, x * sigmoid(x).")
    print("Put your own in its place: reference.py (formula), spec.py (cases), kernel.py, op.py; see docs/adding-an-operator.md.")
    print(f"Then: nox -t {name}, and for its figures nox -s scoreboard -- {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
