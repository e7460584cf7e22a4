"""JSON Lines inputs, made from the machine's text and kept in the work folder for the
next run.

An input of `megabytes` holds at least that many 10^6 bytes of text in :data:`PARTS`
files. The documents are the real files in hash order; when they are used up, further
passes take the same files with their lines shuffled and cut at other places, so that no
later document repeats an earlier one. `input.json` beside the parts says how much is
original.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from benchmarks.text import TextFile, default_roots, find_texts, read_text

PARTS = 8
RECIPE = 1  # change it when the same request would give other bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A folder of JSON Lines files `{"text": ...}` and what is in it. Sizes are bytes.

    `words` and `distinct_words` are counted for inputs of corpora alone: see
    :mod:`benchmarks.corpora`.
    """

    folder: str
    documents: int
    text_bytes: int
    file_bytes: int
    original_bytes: int
    largest_document: int
    kinds: dict[str, int]
    recipe: int = RECIPE
    words: int = 0
    distinct_words: int = 0

    @property
    def megabytes(self) -> float:
        """Text in 10^6 bytes of UTF-8: what every MB per second in the tables
        counts.
        """
        return self.text_bytes / 1e6

    @property
    def pattern(self) -> str:
        """The glob of its files."""
        return f"{self.folder}/*.jsonl"

    def describe(self) -> str:
        """One line for people."""
        kinds = ", ".join(
            f"{name} {size / self.text_bytes:.0%}"
            for name, size in list(self.kinds.items())[:6]
        )
        original = f"{self.original_bytes / self.text_bytes:.1%} original"
        if self.original_bytes < self.text_bytes:
            original += " (the rest: the same lines in other orders and documents)"
        if self.words:
            share = self.distinct_words / self.words
            original += f"; {self.words / 1e6:.1f} million words, of which {share:.2%} are distinct"
        return (
            f"{self.megabytes:.1f} MB of text in {self.documents} documents "
            f"({self.file_bytes / 1e6:.1f} MB of JSON Lines), {original}; {kinds}"
        )


class InputMaker:
    """Makes inputs under one work folder; the machine is searched for text at most
    once.
    """

    def __init__(self, work: Path, roots: Sequence[Path] | None = None) -> None:
        self._work = work
        self._roots = default_roots() if roots is None else list(roots)
        self._files: list[TextFile] | None = None

    def files(self) -> list[TextFile]:
        """The machine's texts, found on first use."""
        if self._files is None:
            self._files = find_texts(self._roots)
            if not self._files:
                raise RuntimeError(
                    f"found no text under {[str(r) for r in self._roots]}; expected source or documentation"
                )
        return self._files

    def make(self, megabytes: float) -> Input:
        """The input of this size: the one made before where it is whole, else a new
        one.
        """
        folder = self._work / "inputs" / f"text-{megabytes:g}MB"
        return load_input(folder) or _write(folder, self.files(), int(megabytes * 1e6))

    def make_one_document(self, megabytes: float) -> Input:
        """An input of a single document of this size."""
        folder = self._work / "inputs" / f"document-{megabytes:g}MB"
        return load_input(folder) or _write(
            folder, self.files(), int(megabytes * 1e6), one_document=True
        )


def documents(files: Sequence[TextFile]) -> Iterator[tuple[str, str]]:
    """Yields (kind, text) without end: the files themselves, then pass after pass of
    :func:`remade`.
    """
    for file in files:
        yield from (
            (_kind(file), text)
            for text in [read_text(Path(file.path))]
            if text is not None
        )
    for turn in range(1, 1 << 30):
        for file in files:
            text = read_text(Path(file.path))
            yield from (
                ("repeated", piece)
                for piece in (remade(text, file.digest, turn) if text else ())
            )


def remade(text: str, digest: bytes, turn: int) -> Iterator[str]:
    """Other documents of the same lines: a shuffle fixed by (digest, turn), cut
    every 20 to 400 lines.
    """
    order = random.Random(digest + turn.to_bytes(4, "little"))
    lines = text.splitlines(keepends=True)
    order.shuffle(lines)
    start = 0
    while start < len(lines):
        stop = start + order.randint(20, 400)
        yield "".join(lines[start:stop])
        start = stop


def _kind(file: TextFile) -> str:
    path = Path(file.path)
    return (
        Path(path.stem).suffix + path.suffix if path.suffix == ".gz" else path.suffix
    ) or path.name


def load_input(folder: Path) -> Input | None:
    note = folder / "input.json"
    if not note.exists():
        return None
    made = Input(**(json.loads(note.read_bytes()) | {"folder": str(folder)}))
    size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
    return made if made.recipe == RECIPE and size == made.file_bytes else None


def _write(
    folder: Path, files: Sequence[TextFile], wanted: int, *, one_document: bool = False
) -> Input:
    fresh = folder.with_name(folder.name + ".making")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    counts = (
        _write_one(fresh, files, wanted)
        if one_document
        else write_parts(fresh, documents(files), wanted)
    )
    return finish(fresh, folder, counts)


def finish(fresh: Path, folder: Path, counts: dict[str, object]) -> Input:
    """Describe the input written to `fresh`, and give it its name."""
    size = sum(path.stat().st_size for path in fresh.glob("*.jsonl"))
    made = Input(folder=str(folder), file_bytes=size, **counts)
    (fresh / "input.json").write_text(json.dumps(asdict(made), indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return made


def write_parts(
    folder: Path, source: Iterator[tuple[str, str]], wanted: int
) -> dict[str, object]:
    """Write :data:`PARTS` files of documents (kind, text) until there are `wanted`
    bytes of text.
    """
    kinds: dict[str, int] = {}
    number = total = largest = 0
    for part in range(PARTS):
        with (folder / f"part-{part:02d}.jsonl").open("wb") as sink:
            while True:  # at least one document in every part
                kind, text = next(source)
                sink.write(
                    orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE)
                )
                size = len(text.encode())
                number, total, largest = number + 1, total + size, max(largest, size)
                kinds[kind] = kinds.get(kind, 0) + size
                if total * PARTS >= wanted * (part + 1):
                    break
    return _counts(number, total, largest, kinds)


def _write_one(
    folder: Path, files: Sequence[TextFile], wanted: int
) -> dict[str, object]:
    kinds: dict[str, int] = {}
    pieces: list[str] = []
    total = 0
    for kind, text in documents(files):
        pieces.append(text)
        size = len(text.encode())
        total += size
        kinds[kind] = kinds.get(kind, 0) + size
        if total >= wanted:
            break
    line = orjson.dumps({"text": "".join(pieces)}, option=orjson.OPT_APPEND_NEWLINE)
    (folder / "part-00.jsonl").write_bytes(line)
    return _counts(1, total, total, kinds)


def _counts(
    number: int, total: int, largest: int, kinds: dict[str, int]
) -> dict[str, object]:
    ordered = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    original = total - kinds.get("repeated", 0)
    return {
        "documents": number,
        "text_bytes": total,
        "original_bytes": original,
        "largest_document": largest,
        "kinds": ordered,
    }
