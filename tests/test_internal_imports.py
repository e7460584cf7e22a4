"""Tests go through public doors: the number of internal names that they import may
only fall.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent

PUBLIC_MODULES = frozenset(
    {
        "tokenlake",
        "tokenlake.cli.app",
        "tokenlake.core",
        "tokenlake.data_pipeline",
        "tokenlake.distributed",
        "tokenlake.easydel",
        "tokenlake.errors",
        "tokenlake.execution",
        "tokenlake.trainer",
        "tokenlake.transforms",
        "tokenlake.utils",
    }
)
"""Modules that users import. A test that imports from any other module breaks when
code moves.
"""

LIBRARY = Path(__file__).parents[1] / "lib"

DOORS = {
    *(
        ".".join(stub.parent.relative_to(LIBRARY).parts)
        for stub in LIBRARY.rglob("__init__.pyi")
    ),
    "tokenlake.config.resolve",
}
"""Packages that list what the rest of the library and the tests may import; the
files behind a door can move.
"""

MOST_INTERNAL_NAMES = 47
"""Number of internal names that tests imported when it was last lowered."""


def internal_names() -> set[tuple[str, str]]:
    """Return the module and name of everything internal that a test imports."""
    names: set[tuple[str, str]] = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            is_ours = node.module.partition(".")[0].startswith("tokenlake")
            if is_ours and node.module not in PUBLIC_MODULES | DOORS:
                names.update((node.module, alias.name) for alias in node.names)
    return names


def test_no_test_imports_more_internal_names() -> None:
    count = len(internal_names())
    assert count <= MOST_INTERNAL_NAMES, (
        f"tests import {count} internal names, at most {MOST_INTERNAL_NAMES} are allowed; "
        "test through a public module, or a fixture that exists"
    )
    assert count == MOST_INTERNAL_NAMES, (
        f"set MOST_INTERNAL_NAMES to {count}: it may only fall"
    )
