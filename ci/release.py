"""Releases one distribution. Run: python ci/release.py prepare geglu minor [--execute] [-- arguments of pytest]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from history import GitError
from releasing import Refused
from releasing.steps import prepare, prepare_wave, publish
from releasing.versions import PARTS
from repo import ROOT, distributions


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="release.py", description="Releases one distribution; docs/releasing.md tells the whole way.")
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="everything up to the tag; dry unless --execute")
    preparing.add_argument("name", choices=[found.short for found in distributions()])
    preparing.add_argument("part", choices=PARTS, help="the part of the version that grows")
    preparing.add_argument("--execute", action="store_true", help="commit and tag")
    wave = commands.add_parser("wave", help="npu-ops for what was released last, a known-good set; dry unless --execute")
    wave.add_argument("version", help="year and month, 2026.12")
    wave.add_argument("--execute", action="store_true", help="commit and tag")
    publishing = commands.add_parser("publish", help="what the workflow of a tag runs: archives and what describes them, from the tag")
    publishing.add_argument("tag")
    # What follows -- goes to pytest; argparse would take it for arguments of its own.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:end], argparse.Namespace(tests=arguments[end + 1 :]))


def main() -> int:
    options = parse(sys.argv[1:])
    if options.command == "publish":
        steps = publish(ROOT, options.tag, options.tests)
    elif options.command == "wave":
        steps = prepare_wave(ROOT, options.version, options.execute)
    else:
        steps = prepare(ROOT, options.name, options.part, options.execute, options.tests)
    try:
        for step in steps:
            print(step, flush=True)
    except (Refused, GitError) as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
