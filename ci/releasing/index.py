"""A folder that pip reads as a package index (PEP 503): what was released here, before or instead of a public index."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name


def add(index: Path, archives: Iterable[Path]) -> None:
    """Copies wheels and sdists into the index, `pip install --index-url <its URI>`, and renews its pages."""
    for archive in archives:
        project = index / canonicalize_name(archive.name.split("-")[0])
        project.mkdir(parents=True, exist_ok=True)
        shutil.copy(archive, project)
    for project in _folders(index):
        files = sorted(file for file in project.iterdir() if file.name != "index.html")
        _page(project, [(f"{quote(file.name)}#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}", file.name) for file in files])
    _page(index, [(f"{project.name}/", project.name) for project in _folders(index)])


def _folders(index: Path) -> list[Path]:
    return sorted(path for path in index.iterdir() if path.is_dir())


def _page(folder: Path, links: Iterable[tuple[str, str]]) -> None:
    lines = "".join(f'<a href="{escape(target)}">{escape(text)}</a><br>\n' for target, text in links)
    (folder / "index.html").write_text(f"<!DOCTYPE html>\n<html><body>\n{lines}</body></html>\n")
