"""The machine's own text: real files that every development machine has, each text
once.

Source code, headers, documentation and manual pages of the interpreter, of the
installed distributions and of the operating system. Nothing under a home directory or
/etc is touched. Files are ordered by the hash of their text, which is a random order
that is the same on every run: any prefix of it is a fair sample of the whole.
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

SUFFIXES: Final = frozenset(
    (
        *(
            ".py",
            ".pyi",
            ".pyx",
            ".md",
            ".rst",
            ".txt",
            ".html",
            ".tex",
            ".h",
            ".hh",
            ".hpp",
            ".c",
            ".cc",
        ),
        *(
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
        ),
        *(".cmake", ".m4"),
    )
)
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
# Bytes of a file on disk; larger ones are mostly generated tables.
SMALLEST, LARGEST = 200, 1 << 20
# A text with one of these would get different ids from systems that disagree about
# special tokens in text (Tokenlake takes them literally, its peers turn them into
# control ids): left out, so that equal token counts show that every system did the same
# work.
SPECIAL: Final = ("<|endoftext|>", "<s>", "</s>", "<unk>")


@dataclass(frozen=True, slots=True, order=True)
class TextFile:
    """One distinct text. `digest` orders the collection; `size` is its length in
    UTF-8 bytes.
    """

    digest: bytes
    path: str
    size: int


def default_roots() -> list[Path]:
    """Folders worth looking at; those that do not exist here are left out."""
    paths = sysconfig.get_paths()
    names = [
        paths["stdlib"],
        paths["purelib"],
        paths["platlib"],
        "/usr/share",
        "/usr/include",
        "/usr/lib",
    ]
    roots = {Path(name).resolve() for name in names if Path(name).is_dir()}
    return sorted(roots)


def is_text_name(name: str) -> bool:
    """Whether a file of this name holds text: a known suffix or name, or a manual
    page; also gzipped.
    """
    inner = name.removesuffix(".gz")
    suffix = Path(inner).suffix
    return (
        inner in NAMES or suffix in SUFFIXES or (suffix[1:].isdigit() and inner != name)
    )


def read_text(path: Path) -> str | None:
    """The text of a file (gunzipped where the name says so), or None where it is not
    wanted.
    """
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if path.suffix == ".gz" else raw
        text = data.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return None
    wanted = SMALLEST <= len(data) <= 4 * LARGEST and "\0" not in text
    return text if wanted and not any(word in text for word in SPECIAL) else None


def find_texts(roots: Iterable[Path]) -> list[TextFile]:
    """All distinct texts under `roots`, ordered by digest; the first path in sorted
    order names each.
    """
    found: dict[bytes, TextFile] = {}
    for path in sorted(set(_candidates(roots))):
        text = read_text(path)
        if text is not None:
            data = text.encode()
            digest = hashlib.blake2b(data, digest_size=16).digest()
            found.setdefault(digest, TextFile(digest, str(path), len(data)))
    return sorted(found.values())


def _candidates(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                if is_text_name(name) and _is_plain(path):
                    yield path


def _is_plain(path: Path) -> bool:
    try:
        return (
            path.is_file()
            and not path.is_symlink()
            and SMALLEST <= path.stat().st_size <= LARGEST
        )
    except OSError:
        return False
