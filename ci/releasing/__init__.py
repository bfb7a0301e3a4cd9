"""Releases one distribution; `ci/release.py` is the command. docs/releasing.md tells the whole way.

A release is prepared in a throw-away worktree of HEAD. What the maintainer works in changes only at the end, when every check
has passed and it was asked for.
"""


class Refused(Exception):
    """The release does not happen; the message says why and what would mend it."""
