"""Reads JSON lines that a JSON Schema describes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class BadLines(ValueError):
    """A file that cannot be read, holds no record, or a wrong one; the message names the file, the line and what is wrong."""


def records_of(file: Path, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a file in its order, each with the place, "file:line", that a message names; empty lines are skipped.

    Raises:
        BadLines: the file cannot be read, holds no record, or one that `schema` refuses.
    """
    from jsonschema import Draft202012Validator  # every command of the lab loads this module, few read a file

    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadLines(f"{file}: {error}") from error
    validator = Draft202012Validator(schema)
    numbered = [(f"{file}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise BadLines(f"{file}: must hold a record (got none)")
    for where, line in numbered:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadLines(f"{where}: must be JSON: {error}") from error
        wrong = min(validator.iter_errors(record), key=lambda error: list(map(str, error.path)), default=None)
        if wrong is not None:
            raise BadLines(f"{where}: {'.'.join(map(str, wrong.path)) or 'record'}: {wrong.message}")
        yield where, record
