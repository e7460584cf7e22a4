"""The blocks of code in the pages, and how each kind of them is run.

A page is run in one folder, from top to bottom. Python blocks share one namespace. A block whose first line is a
comment with a file's name (``# books.yaml``) is written there, too. What cannot run stands behind a comment that
says why::

    <!-- not run: it needs the Hub -->
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenlake import load_config
from tokenlake.cli.app import main
from tokenlake.config import first_steps
from tokenlake.config.resolve import foreseen, resolve
from tokenlake.runtime.trainer import load_training_config

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = tuple(
    sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
    )
)
_BLOCK: Final = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n+)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
_NAME: Final = re.compile(r"# ([\w./-]+\.(?:yaml|py))\b")
_SOURCE: Final = (
    "datasets:\n  - data_files: data/*.jsonl\n    tokenizer: meta-llama/Llama-2-7b-hf\n"
)
_SOURCES: Final = "datasets:\n  - {name: code, data_files: data/*.jsonl}\n  - {name: web, data_files: data/*.jsonl}\n"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        place: page and line, such as ``docs/report.md:12``.
        kind: its language; empty: output, or a picture of folders.
        why: why it is not run; empty where it is.
    """

    place: str
    kind: str
    code: str
    why: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page, which is named from the root."""
    text = (ROOT / page).read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("kind")) + 1
        yield Block(
            f"{page}:{line}", found["kind"], found["code"], (found["why"] or "").strip()
        )


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run a block in the current folder; an error is one of the test."""
    if name := _NAME.match(block.code):
        Path(name[1]).write_text(block.code)
    if block.kind == "python":
        # The empty lines in front make a traceback's lines those of the page.
        lines = "\n" * int(block.place.rpartition(":")[2])
        exec(compile(lines + block.code, block.place, "exec"), namespace)
    elif block.kind == "bash":
        for line in block.code.replace("\\\n", " ").splitlines():
            _command(line, block.place)
    elif block.kind == "yaml":
        _configuration(block)


def _command(line: str, place: str) -> None:
    """Run the commands of a line, which are those of Tokenlake alone; `>` writes
    what one prints.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";>")
    lexer.whitespace_split = True
    words = list(lexer)
    while words:
        end = words.index(";") if ";" in words else len(words)
        command, words = words[:end], words[end + 1 :]
        target = command[command.index(">") + 1] if ">" in command else None
        if target:
            command = command[: command.index(">")]
        assert command[0] == "tokenlake", (
            f"{place}: {command[0]} is run by no test; say why, or leave it out"
        )
        printed = io.StringIO()
        # A server of Prefect takes seconds to start; the flows have tests of their own.
        extra = ["--no-prefect"] if command[1] in ("run", "import") else []
        with contextlib.redirect_stdout(printed):
            code = main([*command[1:], *extra])
        assert code == 0, (
            f"{place}: {shlex.join(command)} ended with {code}: {printed.getvalue()}"
        )
        if target:
            Path(target).write_text(printed.getvalue())


def _configuration(block: Block) -> None:
    """Load a configuration, to which a page that shows a part of one adds the rest."""
    text = block.code
    path = Path("shown.yaml")
    if text.startswith(("preset:", "# train.yaml")):
        path.write_text(text)
        load_training_config(path)
        return
    if not re.search(r"^(datasets|type):", text, re.M):
        text = (_SOURCES if "mix:" in text else _SOURCE) + text
    if "tokenizer" not in text:
        text += "default_tokenizer: meta-llama/Llama-2-7b-hf\n"
    path.write_text(text)
    config = load_config(path)
    if config.is_text_build:
        assert resolve(config, environ={}).sources, block.place
        return
    texts = [resolve(step, environ={}) for step in first_steps(config).values()]
    assert len(foreseen(config).parents) >= len(texts), block.place
