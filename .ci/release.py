"""Prepare a release, and check it: the number, the tag and the section of the changelog must agree.

``python .ci/release.py date``        turns the section Unreleased into that of the version, with today's date
``python .ci/release.py notes TAG``   prints the section of the version; fails if it has no date or the tag differs
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
UNRELEASED: Final = "## [Unreleased]\n"


class ReleaseError(Exception):
    """The release cannot be made; the message says why and how to fix it."""


def version_of(root: Path) -> str:
    """Return the version number of the code."""
    text = (root / "lib/tokenlake/_version.py").read_text("utf-8")
    number = re.search(r'^__version__ = "(\d+\.\d+\.\d+\S*)"$', text, re.MULTILINE)
    if number is None:
        raise ReleaseError('lib/tokenlake/_version.py: no line __version__ = "X.Y.Z"')
    return number[1]


def dated(changelog: str, version: str, day: datetime.date) -> str:
    """Return the changelog in which the unreleased changes are those of a version.

    Args:
        changelog: Text of CHANGELOG.md.
        version: Number of the version.
        day: Day of the release.

    Raises:
        ReleaseError: The version has a section already, or there are no unreleased changes.
    """
    if f"## [{version}]" in changelog:
        raise ReleaseError(
            f"CHANGELOG.md: version {version} has a section; raise the number in _version.py first"
        )
    before, heading, after = changelog.partition(UNRELEASED)
    changes = after.partition("\n## [")[0].strip()
    if not heading or not changes:
        raise ReleaseError("CHANGELOG.md: the section Unreleased is missing or empty")
    return f"{before}{heading}\n## [{version}] - {day.isoformat()}\n{after}"


def notes(changelog: str, version: str, tag: str) -> str:
    """Return the changes of a version, for the page of the release.

    Args:
        changelog: Text of CHANGELOG.md.
        version: Number of the version.
        tag: Git tag of the release, such as ``v0.1.0``.

    Raises:
        ReleaseError: The tag is not that of the version, or the section is missing or has no date.
    """
    if tag != f"v{version}":
        raise ReleaseError(
            f"tag: got {tag}, expected v{version}, the number in lib/tokenlake/_version.py"
        )
    section = re.search(
        rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## \[|^\[[^\]]+\]: |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if section is None:
        raise ReleaseError(
            f"CHANGELOG.md: no section '## [{version}] - YYYY-MM-DD'; run `python .ci/release.py date` and commit it"
        )
    return section[2].strip() + "\n"


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run a command and return its exit code."""
    path = root / "CHANGELOG.md"
    try:
        match arguments:
            case ["date"]:
                today = datetime.datetime.now(datetime.UTC).date()
                path.write_text(
                    dated(path.read_text("utf-8"), version_of(root), today), "utf-8"
                )
            case ["notes", tag]:
                sys.stdout.write(notes(path.read_text("utf-8"), version_of(root), tag))
            case _:
                raise ReleaseError("usage: python .ci/release.py date | notes TAG")
    except ReleaseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
