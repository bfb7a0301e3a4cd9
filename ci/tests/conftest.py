"""What several test files use."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from repo import ROOT


@pytest.fixture(scope="session")
def noxfile() -> ModuleType:
    """The sessions of the repository as functions; loaded once, for nox takes a name once."""
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
