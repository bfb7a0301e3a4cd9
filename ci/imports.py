"""Who may import whom, for the packages found on disk; import-linter checks it.

Operators import npu_op_runtime, never npu_op_lab, and one another only where their metadata declares the dependency. The
runtime imports neither. Run: python ci/imports.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from repo import Distribution, operators


def contracts(found: Sequence[Distribution]) -> str:
    """The import-linter configuration for these operators."""
    modules = [operator.module for operator in found]
    by_name = {operator.name: operator for operator in found}
    declared = [(one.module, by_name[name].module) for one in found for name in one.requirements if name in by_name]
    # A pattern of import-linter means a package or what is in it, never both.
    allowed = [f"{one}{inside} -> {other}{within}" for one, other in declared for inside in ("", ".**") for within in ("", ".**")]
    sections: dict[str, dict[str, str | list[str]]] = {
        "importlinter": {"root_packages": ["npu_op_runtime", "npu_op_lab", *modules]},
        "importlinter:contract:runtime": {
            "name": "The runtime imports neither the lab nor an operator",
            "type": "forbidden",
            "source_modules": ["npu_op_runtime"],
            "forbidden_modules": ["npu_op_lab", *modules],
        },
        "importlinter:contract:operators": {
            "name": "No operator imports the lab",
            "type": "forbidden",
            "source_modules": modules,
            "forbidden_modules": ["npu_op_lab"],
        },
        "importlinter:contract:lab": {
            "name": "The lab finds operators by their entry points, and imports none",
            "type": "forbidden",
            "source_modules": ["npu_op_lab"],
            "forbidden_modules": modules,
        },
        "importlinter:contract:independence": {
            "name": "Operators import one another only where the dependency is declared",
            "type": "independence",
            "modules": modules,
            "ignore_imports": allowed,
            "unmatched_ignore_imports_alerting": "none",
        },
    }
    lines = []
    for title, fields in sections.items():
        lines.append(f"[{title}]")
        for key, value in fields.items():
            lines.append(f"{key} =" + (f" {value}" if isinstance(value, str) else "".join(f"\n    {item}" for item in value)))
    return "\n".join(lines) + "\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "importlinter.ini"
        config.write_text(contracts(operators()))
        return int(lint_imports(config_filename=str(config), no_cache=True) != EXIT_STATUS_SUCCESS)


if __name__ == "__main__":
    sys.exit(main())
