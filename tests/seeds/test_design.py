"""The design card: what the project is made of, and that each package that it asks
for carries something.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.seeds import promise

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
MODULES = {
    "pyyaml": "yaml",
    "opentelemetry_api": "opentelemetry",
    "orbax_checkpoint": "orbax",
}
"""Packages whose modules have other names."""

PINNED = {"fastapi", "sqlalchemy"}
"""Packages of which only the version matters: Prefect imports them."""


def asked_for() -> set[str]:
    """Return the packages of the base and of all extras but those for tests,
    benchmarks, pages and notebooks.
    """
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"]]
    lines += [
        line
        for name, group in extras.items()
        if name not in ("dev", "bench", "docs", "notebook")
        for line in group
    ]
    names = {
        re.split(r"[\[<>=;~ ]", line)[0].lower().replace("-", "_") for line in lines
    }
    return names - {"tokenlake"} - PINNED


def imported() -> set[str]:
    """Return the top-level modules that the library, its tasks and flows import,
    wherever they do so.
    """
    found: set[str] = set()
    for path in (
        path
        for folder in ("lib", "tasks", "flows")
        for path in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


BY_NAME = {"s3fs", "gcsfs", "adlfs", "array_record"}
"""Imported by a name: file systems by fsspec, from the scheme of a URL, and optional
modules of formats.
"""


@promise(322, 323, 326)
def test_every_package_that_is_asked_for_is_imported() -> None:
    used = imported()
    idle = {
        name
        for name in asked_for()
        if MODULES.get(name, name) not in used and name not in BY_NAME
    }
    assert idle == set()


@promise(159)
def test_stores_in_buckets_have_an_extra_each() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {
        name: [re.split("[>=]", line)[0] for line in extras[name]]
        for name in ("gcs", "s3")
    } == {
        "gcs": ["gcsfs"],
        "s3": ["s3fs"],
    }


@promise(328)
@pytest.mark.parametrize(
    "name",
    [
        "pyproject.toml",
        "flows",
        "tasks",
        "lib",
        "deployments",
        "tests",
        "notebooks",
        "README.md",
    ],
)
def test_the_top_level_is_that_of_the_card(name: str) -> None:
    assert (ROOT / name).exists()
    if (ROOT / name).is_dir():
        assert any((ROOT / name).iterdir())
