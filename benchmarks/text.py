"""Text files of this machine, each distinct text once.

The texts are source code, headers, documentation and manual pages of the interpreter,
of the installed packages and of the operating system. Home directories and /etc are not
read. Files are ordered by the hash of their text. This order is random, but the same in
every run, so that each prefix of it is a fair sample.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

_CODE_SUFFIXES: Final = [
    ".py",
    ".pyi",
    ".pyx",
    ".h",
    ".hh",
    ".hpp",
    ".c",
    ".cc",
    ".cpp",
    ".pm",
    ".pl",
    ".pod",
    ".rb",
    ".php",
    ".lua",
    ".js",
    ".ts",
    ".css",
    ".sh",
    ".vim",
    ".el",
    ".cmake",
    ".m4",
]
_PROSE_SUFFIXES: Final = [".md", ".rst", ".txt", ".html", ".tex"]
SUFFIXES: Final = frozenset(_CODE_SUFFIXES + _PROSE_SUFFIXES)
NAMES: Final = frozenset(
    {
        "METADATA",
        "copyright",
        "README",
        "LICENSE",
        "NEWS",
        "changelog",
        "changelog.Debian",
    }
)
"""Names of text files without a suffix."""

SMALLEST: Final = 200
LARGEST: Final = 1 << 20
"""Bounds of the bytes of a file on disk. Larger files are mostly generated tables."""

# Systems disagree about special tokens in text: Tokenlake takes them literally, others
# turn them into control ids. Without these texts, equal token counts show that every
# system did the same work.
SPECIAL: Final = ("<|endoftext|>", "<s>", "</s>", "<unk>")
"""Special tokens that no text may contain."""


@dataclass(frozen=True, slots=True, order=True)
class TextFile:
    """A distinct text.

    Attributes:
        digest: Hash of the text, by which files are ordered.
        path: Path of the file.
        size: Number of bytes of the text in UTF-8.
    """

    digest: bytes
    path: str
    size: int


def default_roots() -> list[Path]:
    """Return the existing folders of this machine that are searched for text."""
    paths = sysconfig.get_paths()
    folder_names = [
        paths["stdlib"],
        paths["purelib"],
        paths["platlib"],
        "/usr/share",
        "/usr/include",
        "/usr/lib",
    ]
    roots = {
        Path(folder_name).resolve()
        for folder_name in folder_names
        if Path(folder_name).is_dir()
    }
    return sorted(roots)


def is_text_name(name: str) -> bool:
    """Return whether a file with this name holds text, plain or gzipped.

    It has a known suffix or name, or is a gzipped manual page like ``ls.1.gz``.
    """
    plain_name = name.removesuffix(".gz")
    suffix = Path(plain_name).suffix
    if plain_name in NAMES or suffix in SUFFIXES:
        return True
    # Manual pages are named by their section, such as ls.1.gz.
    is_gzipped = plain_name != name
    return is_gzipped and suffix[1:].isdigit()


def read_text(path: Path) -> str | None:
    """Return the text of a file, decompressed if its name ends with ``.gz``.

    It is None if the file cannot be read, is no valid UTF-8, has an unsuitable size, or
    contains a special token.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return None
    # Decompressed texts may be larger. NUL shows binary data.
    if not SMALLEST <= len(data) <= 4 * LARGEST or "\0" in text:
        return None
    if any(token in text for token in SPECIAL):
        return None
    return text


def parquet_texts(path: Path) -> list[str]:
    """Return the texts of the column `text` of a Parquet file, without empty ones."""
    texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
    return [text for text in texts if text]


def find_texts(roots: Iterable[Path]) -> list[TextFile]:
    """Return all distinct texts below some folders, ordered by digest.

    A text that several files have is named by the first path in sorted order.
    """
    files: dict[bytes, TextFile] = {}
    for path in sorted(set(_candidates(roots))):
        text = read_text(path)
        if text is not None:
            # Files with equal texts have the same digest.
            data = text.encode()
            digest = hashlib.blake2b(data, digest_size=16).digest()
            files.setdefault(digest, TextFile(digest, str(path), len(data)))
    return sorted(files.values())


def _candidates(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield the files below some folders that may hold text."""
    for root in roots:
        for folder, _, file_names in os.walk(root):
            for file_name in file_names:
                path = Path(folder, file_name)
                if is_text_name(file_name) and _is_suitable(path):
                    yield path


def _is_suitable(path: Path) -> bool:
    """Return whether a path is a regular file of suitable size, and no link."""
    try:
        if not path.is_file() or path.is_symlink():
            return False
        return SMALLEST <= path.stat().st_size <= LARGEST
    except OSError:
        return False
