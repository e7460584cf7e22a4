"""JSON Lines inputs, made of texts of this machine and cached in the work folder.

An input of `megabytes` has at least as many 10^6 bytes of text, in :data:`PARTS` files:

1. The documents are the text files of this machine, in the order of their hashes.
2. If they are not enough, further passes over the same files follow. A pass shuffles
   the lines of a file and cuts them at other places, so that no document repeats an
   earlier one.

`input.json` next to the parts records the sizes, and how much text is original.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import orjson

from benchmarks.text import TextFile, default_roots, find_texts, read_text

PARTS = 8
RECIPE = 1
"""Version of the recipe. It changes whenever an input of a given size has other bytes."""

REPEATED = "repeated"
"""Kind of the documents that are made of lines of earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Folder of JSON Lines files with rows `{"text": ...}`.

    Attributes:
        folder: Path of the folder.
        documents: Number of documents.
        text_bytes: Bytes of all texts in UTF-8.
        file_bytes: Bytes of all files.
        original_bytes: Bytes of the texts that repeat no earlier lines.
        largest_document: Bytes of the largest text.
        kinds: Kind of text -> bytes, the largest first.
        recipe: Version of the recipe by which the input was made.
        words: Number of words; 0 unless :mod:`benchmarks.corpora` made the input.
        distinct_words: Number of distinct words; 0 like `words`.
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
        """Text in 10^6 bytes of UTF-8, the unit of every MB per second in the report."""
        return self.text_bytes / 1e6

    @property
    def pattern(self) -> str:
        """Glob pattern of the files."""
        return f"{self.folder}/*.jsonl"

    def describe(self) -> str:
        """Return a line that describes the input in the report."""
        # The main kinds of text, and the share of original text.
        kinds: list[str] = []
        for name, size in list(self.kinds.items())[:6]:
            kinds.append(f"{name} {size / self.text_bytes:.0%}")
        original = f"{self.original_bytes / self.text_bytes:.1%} original"
        if self.original_bytes < self.text_bytes:
            original += " (the rest: the same lines in other orders and documents)"
        if self.words:
            share = self.distinct_words / self.words
            original += f"; {self.words / 1e6:.1f} million words, of which {share:.2%} are distinct"
        return (
            f"{self.megabytes:.1f} MB of text in {self.documents} documents "
            f"({self.file_bytes / 1e6:.1f} MB of JSON Lines), {original}; {', '.join(kinds)}"
        )


class InputMaker:
    """Maker of inputs below a work folder.

    This machine is searched for text at most once.

    Args:
        work: Work folder of the benchmark.
        roots: Folders to search for text; None: those of :func:`.default_roots`.
    """

    def __init__(self, work: Path, roots: Sequence[Path] | None = None) -> None:
        self._work = work
        self._roots = default_roots() if roots is None else list(roots)
        self._files: list[TextFile] | None = None

    def files(self) -> list[TextFile]:
        """Return the text files of this machine.

        Raises:
            RuntimeError: No text was found.
        """
        if self._files is None:
            self._files = find_texts(self._roots)
        if not self._files:
            folders = [str(root) for root in self._roots]
            raise RuntimeError(
                f"found no text under {folders}; expected source or documentation"
            )
        return self._files

    def make(self, megabytes: float) -> Input:
        """Return the input of a size: the cached one if it is complete, or a new one.

        Args:
            megabytes: Text in 10^6 bytes.
        """
        folder = self._work / "inputs" / f"text-{megabytes:g}MB"
        source = load_input(folder)
        if source is None:
            source = _write(folder, self.files(), int(megabytes * 1e6))
        return source

    def make_one_document(self, megabytes: float) -> Input:
        """Return an input of a single document.

        Args:
            megabytes: Size of the document in 10^6 bytes.
        """
        folder = self._work / "inputs" / f"document-{megabytes:g}MB"
        source = load_input(folder)
        if source is None:
            source = _write(
                folder, self.files(), int(megabytes * 1e6), one_document=True
            )
        return source


def documents(files: Sequence[TextFile]) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) without end.

    The files come first. Passes of :func:`recombined_lines` over them follow.
    """
    # 1. The files themselves.
    for file in files:
        text = read_text(Path(file.path))
        if text is not None:
            yield _kind(file), text
    # 2. Pass after pass, new documents of their lines.
    for turn in count(1):
        for file in files:
            text = read_text(Path(file.path))
            if text is None:
                continue
            for document in recombined_lines(text, file.digest, turn):
                yield REPEATED, document


def recombined_lines(text: str, digest: bytes, turn: int) -> Iterator[str]:
    """Yield other documents of the same lines, of 20 to 400 lines each.

    Args:
        text: Text whose lines are shuffled.
        digest: Hash of the text. With the turn it determines the order.
        turn: Number of the pass over all texts.
    """
    generator = random.Random(digest + turn.to_bytes(4, "little"))
    # 1. Shuffle the lines.
    lines = text.splitlines(keepends=True)
    generator.shuffle(lines)
    # 2. Cut them into documents.
    start = 0
    while start < len(lines):
        stop = start + generator.randint(20, 400)
        yield "".join(lines[start:stop])
        start = stop


def _kind(file: TextFile) -> str:
    """Return the suffix of a file (``.1.gz`` if it is gzipped), or else its name."""
    path = Path(file.path)
    suffix = path.suffix
    if suffix == ".gz":
        suffix = Path(path.stem).suffix + suffix
    return suffix or path.name


def load_input(folder: Path) -> Input | None:
    """Return the input in a folder; None if it is missing, incomplete or outdated."""
    description = folder / "input.json"
    if not description.exists():
        return None
    # The folder may have been moved.
    fields = json.loads(description.read_bytes())
    source = Input(**(fields | {"folder": str(folder)}))
    if source.recipe != RECIPE or _file_bytes(folder) != source.file_bytes:
        return None
    return source


def _file_bytes(folder: Path) -> int:
    """Return the bytes of all JSON Lines files of a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.jsonl"))


def _write(
    folder: Path,
    files: Sequence[TextFile],
    min_bytes: int,
    *,
    one_document: bool = False,
) -> Input:
    """Write an input.

    Args:
        folder: Folder of the input.
        files: Text files of this machine.
        min_bytes: Least number of bytes of text.
        one_document: True to join all texts to a single document.
    """
    # Write to a temporary folder, so that an interrupted run leaves no input.
    new_folder = folder.with_name(folder.name + ".making")
    shutil.rmtree(new_folder, ignore_errors=True)
    new_folder.mkdir(parents=True)
    if one_document:
        counts = _write_one_document(new_folder, files, min_bytes)
    else:
        counts = write_parts(new_folder, documents(files), min_bytes)
    return finish(new_folder, folder, counts)


def finish(new_folder: Path, folder: Path, counts: dict[str, object]) -> Input:
    """Describe an input that was just written, and move it to its folder.

    Args:
        new_folder: Folder in which the input was written.
        folder: Final folder of the input.
        counts: Fields of the input, except its folder and the bytes of its files.
    """
    source = Input(folder=str(folder), file_bytes=_file_bytes(new_folder), **counts)
    (new_folder / "input.json").write_text(json.dumps(asdict(source), indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    new_folder.rename(folder)
    return source


def write_parts(
    folder: Path, source: Iterator[tuple[str, str]], min_bytes: int
) -> dict[str, object]:
    """Write documents to :data:`PARTS` files.

    Args:
        folder: Folder of the files.
        source: Endless documents, as (kind, text).
        min_bytes: Number of bytes of text to reach.

    Returns:
        Counts, as :func:`finish` takes them.
    """
    kinds: dict[str, int] = {}
    document_count = 0
    total_bytes = 0
    largest_document = 0
    for part in range(PARTS):
        with (folder / f"part-{part:02d}.jsonl").open("wb") as output_file:
            while True:  # at least one document in every part
                kind, text = next(source)
                output_file.write(
                    orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE)
                )
                text_bytes = len(text.encode())
                document_count += 1
                total_bytes += text_bytes
                largest_document = max(largest_document, text_bytes)
                kinds[kind] = kinds.get(kind, 0) + text_bytes
                # End the part when its share of the bytes is reached.
                if total_bytes * PARTS >= min_bytes * (part + 1):
                    break
    return _counts(document_count, total_bytes, largest_document, kinds)


def _write_one_document(
    folder: Path, files: Sequence[TextFile], min_bytes: int
) -> dict[str, object]:
    """Write a single document that joins texts until `min_bytes` are reached."""
    kinds: dict[str, int] = {}
    texts: list[str] = []
    total_bytes = 0
    # Join texts of all kinds until the document is large enough.
    for kind, text in documents(files):
        texts.append(text)
        text_bytes = len(text.encode())
        total_bytes += text_bytes
        kinds[kind] = kinds.get(kind, 0) + text_bytes
        if total_bytes >= min_bytes:
            break
    row = {"text": "".join(texts)}
    line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    (folder / "part-00.jsonl").write_bytes(line)
    return _counts(1, total_bytes, total_bytes, kinds)


def _counts(
    document_count: int, total: int, largest: int, kinds: dict[str, int]
) -> dict[str, object]:
    """Return the fields of an input that describe its text."""
    largest_first = sorted(kinds.items(), key=lambda item: -item[1])
    return {
        "documents": document_count,
        "text_bytes": total,
        "original_bytes": total - kinds.get(REPEATED, 0),
        "largest_document": largest,
        "kinds": dict(largest_first),
    }
