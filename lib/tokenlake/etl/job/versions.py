"""Versions of the packages that decide the bytes of a build.

Machines of one build must have equal versions. They are no part of a version's
identity: its manifest records them as `produced_by`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tokenlake._version import __version__


@cache
def produced_by(engine: str | None = None) -> dict[str, str]:
    """Return the name and version of each package that decides bytes.

    Args:
        engine: Tokenizer backend that made the ids; None where nothing was tokenized.
    """
    packages = ["pyarrow"]
    if engine == "words":
        # The backend takes its ids and its character classes from this package.
        packages.append("tokenizers")
    elif engine and engine != "segments":
        # The segment cache is code of this library; other backends are packages of
        # their own name.
        packages.append(engine)
    versions = {"tokenlake": __version__}
    for package in packages:
        versions[package] = _version(package)
    return versions


def other_versions(wanted: Mapping[str, str]) -> list[str]:
    """Return a phrase for each package whose version in this process differs.

    Such a process would write other bytes.

    Args:
        wanted: Name and version of each package with which the plan was made.
    """
    versions = {package: _version(package) for package in wanted}
    versions.update(produced_by())
    differences: list[str] = []
    for package, wanted_version in sorted(wanted.items()):
        if versions[package] != wanted_version:
            differences.append(
                f"{package} {versions[package]} (the plan has {wanted_version})"
            )
    return differences


def _version(package: str) -> str:
    """Return the version of a package, "unknown" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
