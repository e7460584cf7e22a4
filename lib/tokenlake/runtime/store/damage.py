"""Errors about damaged files of a version, in one wording: the version, the file, the
problem, and the commands that list and repair damage.
"""

from __future__ import annotations

from typing import Any

from tokenlake.errors import IntegrityError
from tokenlake.runtime.store.layout import Layout


def damaged_file(
    layout: Layout, path: str, problem: str, *, place: str = "", **details: Any
) -> IntegrityError:
    """Return the error about a damaged file of a version.

    Args:
        layout: Layout of the version.
        path: Path of the file in the version.
        problem: Problem of the file or place, as the rest of a sentence: ``is
            missing``.
        place: Damaged part of the file: ``row group 3``; empty for the whole file.
        details: Facts for programs; `file` is the path, unless it is given.
    """
    version = f"{layout.dataset}@v{layout.version}"
    subject = f"{path}: {place}" if place else path
    details.setdefault("file", path)
    return IntegrityError(
        f"{version}: {subject} {problem}. {repair_advice(version)}", **details
    )


def repair_advice(version: str) -> str:
    """Return the sentence that ends an error about a damaged version.

    Args:
        version: Version, as commands take it: ``books@v2``.
    """
    return f"Run `tokenlake verify {version}` to list all damage, and `tokenlake repair {version}` to repair it."
