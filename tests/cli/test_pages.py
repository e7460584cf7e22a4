"""All text that a user reads when something is asked or goes wrong, in one file to be
read from top to bottom.

Run it with ``-s``: it prints where the file is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import tokenlake
from tokenlake.cli import COMMANDS as KNOWN
from tokenlake.cli.app import main
from tokenlake.errors import TokenlakeError

LIBRARY: Final = Path(tokenlake.__file__).parent
COMMANDS: Final = sorted(KNOWN)

# Words that no native reader expects there; `tests` may know others, users must not.
PRIVATE: Final = re.compile(
    r"\b(mend(s|ed|ing)?|hearing|judg(e|ed|es|ing)|whereabouts|manieth|hopeless)\b"
    r"|there (is|are): none|\b1 (tokens|rows|files|units|documents|records|versions|shards)\b|\ball well\b"
    r"|is none of both|was made of none|as its newest run was asked|what (it|they) (is|are) of\b|came to be had",
    re.IGNORECASE,
)
FILLED: Final = re.compile(r"<[^<>]*>")  # expressions of the code, which nobody reads
# A sentence, a quoted value or a command is at the end; not a colon, a comma or a
# space.
ENDS: Final = re.compile(r"""[\w.)>`'"?!\]}%*/]$|::$""")


def classes(
    root: type[TokenlakeError] = TokenlakeError,
) -> Iterator[type[TokenlakeError]]:
    """Every error class of the library, the root first."""
    yield root
    for derived in root.__subclasses__():
        yield from classes(derived)


CLASSES: Final = {
    cls.__name__: cls for cls in classes() if cls.__module__ == "tokenlake.errors"
}


def messages() -> dict[str, list[tuple[str, str]]]:
    """Class to (place, message) of every error that the code makes; what is filled
    in stands in <brackets>.
    """
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in CLASSES}
    for path in sorted(LIBRARY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in found
            ):
                text = literal(node.args[0]) if node.args else None
                if text is not None:
                    place = f"{path.relative_to(LIBRARY)}:{node.lineno}"
                    found[node.func.id].append((place, text))
    return found


def literal(node: ast.expr) -> str | None:
    """The text of a message that is written out, None of one that is not."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"<{filled(part)}>"
            for part in node.values
        )
    return None


def filled(part: ast.expr) -> str:
    inner = part.value if isinstance(part, ast.FormattedValue) else part
    return ast.unparse(inner).replace("\n", " ")[:40]


def test_every_page_and_every_error_is_in_plain_english(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    pages: list[tuple[str, str]] = []
    for command in ([], *([name] for name in COMMANDS)):
        assert main([*command, "--help"]) == 0
        shown = "\n".join(
            line.rstrip() for line in capsys.readouterr().out.splitlines()
        )
        assert shown.startswith(f"Usage: tokenlake {' '.join(command) or 'COMMAND'}")
        assert "Exit codes" in shown
        pages.append((f"tokenlake {' '.join([*command, '--help'])}", shown))
    errors = [
        (f"{name}  {place}", str(CLASSES[name](message)))
        for name, entries in messages().items()
        for place, message in entries
    ]
    read = tmp_path / "pages.txt"
    read.write_text(
        "\n\n".join(f"== {title}\n{text}" for title, text in [*pages, *errors]), "utf-8"
    )
    with capsys.disabled():
        print(f"\nall help pages and errors: {read}")

    overview = pages[0][1]
    assert [
        name
        for name in COMMANDS
        if not re.search(rf"^  {name} ", overview, re.MULTILINE)
    ] == []
    assert {title.split()[0] for title, _ in errors} == CLASSES.keys()
    assert [
        (title, found[0])
        for title, text in [*pages, *errors]
        if (found := PRIVATE.search(FILLED.sub("<>", text)))
    ] == []
    assert [
        (title, text[-60:]) for title, text in errors if not ENDS.search(text)
    ] == []
