"""What pages name is there, and what is written from the code is current."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from tokenlake.config import READERS, UNSUPPORTED_OPTIONS

ROOT = Path(__file__).parent.parent
CONFIGURATION = ROOT / "docs/configuration.md"
MARK = "in lib/tokenlake/config/unsupported.py. -->\n"


def unsupported_table() -> str:
    """Return the table of the options that are refused or not used, as Markdown."""
    rows: list[tuple[str, ...]] = []
    for refusal in UNSUPPORTED_OPTIONS:
        roads: dict[str, list[str]] = {}
        for reader, name in READERS.items():
            # A source on its own looks at the options of its dataset alone.
            applies = reader != "source" or refusal.key.startswith("datasets.")
            if applies and (instead := refusal.instead(reader)):
                roads.setdefault(instead, []).append(name)
        fine = ", ".join(f"`{value!r}`" for value in refusal.also)
        outcome = "accepted with a note" if refusal.is_speed else "refused"
        for instead, names in roads.items():
            rows.append((f"`{refusal.key}`", ", ".join(names), outcome, instead, fine))
    # The cells are Markdown already: to_markdown takes its cells for texts.
    head = ("option", "not used by", "another value is", "instead", "also allowed")
    lines = [head, ["---"] * len(head), *rows]
    escaped = (
        [cell.replace("\\", "\\\\").replace("|", "\\|") for cell in line]
        for line in lines
    )
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def test_the_table_of_what_is_refused_is_current() -> None:
    text = CONFIGURATION.read_text()
    assert text.partition(MARK)[2] == unsupported_table(), (
        "run `python -m tests.test_docs` to write it again"
    )


def test_the_glossary_is_alphabetical_and_names_what_is_there() -> None:
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("|")][2:]
    assert len(words) <= 70
    assert words == sorted(words, key=str.lower)
    for page in ("docs/glossary.md", "docs/architecture.md", "CONTRIBUTING.md"):
        for path in re.findall(r"`([a-z_]+/[a-z_/.]*)`", (ROOT / page).read_text()):
            assert any(
                (folder / path).exists() for folder in (ROOT / "lib/tokenlake", ROOT)
            ), (page, path)


def test_tests_and_modules_that_pages_name_are_there() -> None:
    for page in (
        *ROOT.glob("docs/*.md"),
        ROOT / "README.md",
        ROOT / "benchmarks/README.md",
    ):
        text = page.read_text()
        for path in re.findall(r"`(?:tests/)?((?:[a-z]+/)*test_\w+\.py)`", text):
            assert (ROOT / "tests" / path).exists(), (page.name, path)
        for module, names in re.findall(
            r"^from (tokenlake[\w.]*) import (.+)$", text, re.MULTILINE
        ):
            for name in names.split(", "):
                assert hasattr(import_module(module), name), (page.name, module, name)


if __name__ == "__main__":
    head, mark, _ = CONFIGURATION.read_text().partition(MARK)
    CONFIGURATION.write_text(head + mark + unsupported_table())
