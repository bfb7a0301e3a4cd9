"""The sessions follow from what lies on disk."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from repo import ROOT, distributions, operators


@pytest.fixture(scope="module")
def sessions() -> dict[str, str]:
    """Description by session name, of everything that `nox -l` shows."""
    # Not --json: it leaves out what a bare `nox` would not run.
    listing = subprocess.run([sys.executable, "-m", "nox", "-l"], cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(re.findall(r"^[*-] (\S+)(?: -> (.+))?$", listing.stdout, re.MULTILINE))


def test_every_operator_has_its_sessions(sessions: dict[str, str]) -> None:
    kinds = ("test", "bench", "compile", "emulate", "tolerance", "build")
    assert {f"{kind}-{operator.short}" for kind in kinds for operator in operators()} <= set(sessions)
    assert {f"build-{found.short}" for found in distributions()} <= set(sessions)


def test_every_session_is_explained_in_a_line(sessions: dict[str, str]) -> None:
    assert all(sessions.values())
