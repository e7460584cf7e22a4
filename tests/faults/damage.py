"""Ways in which the files of a store are damaged, each chosen by a seed."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

Change = bytes | str | None
"""What becomes of a file: other bytes; ``folder``, ``pipe`` or ``link`` in its
place; None: it is gone.
"""


@dataclass(frozen=True)
class Damage:
    """Files by their key, and what becomes of them.

    Attributes:
        what: for people.
    """

    what: str
    changes: Mapping[str, Change] = field(default_factory=dict[str, Change])


def _flip(dice: random.Random, data: bytes) -> bytes:
    bad = bytearray(data)
    for _ in range(1 if dice.random() < 0.8 else dice.randrange(2, 9)):
        bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
    return bytes(bad)


def _flip_at_the_end(dice: random.Random, data: bytes) -> bytes:
    """Where Parquet has what no checksum covers."""
    bad = bytearray(data)
    bad[-1 - dice.randrange(max(1, min(len(bad), len(bad) // 3)))] ^= (
        1 << dice.randrange(8)
    )
    return bytes(bad)


def _cut(dice: random.Random, data: bytes) -> bytes:
    return data[: dice.randrange(len(data))]


def _lost_blocks(dice: random.Random, data: bytes) -> bytes:
    """The size is right, the end was never written."""
    return data[: dice.randrange(len(data))].ljust(len(data), b"\0")


def _insert(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + dice.randbytes(dice.randrange(1, 40)) + data[at:]


def _hole(dice: random.Random, data: bytes) -> bytes:
    at, size = dice.randrange(len(data)), dice.choice((1, 4, 16, 64, 512, 4096))
    return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]


def _noise(dice: random.Random, data: bytes) -> bytes:
    at, size = dice.randrange(len(data)), dice.choice((2, 4, 8, 64, 512))
    return data[:at] + dice.randbytes(len(data[at : at + size])) + data[at + size :]


def _missing_piece(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + data[at + dice.randrange(1, 64) :]


def _moved(dice: random.Random, data: bytes) -> bytes:
    """A piece is lost, and as many bytes follow at the end: the size stays."""
    at, size = dice.randrange(len(data)), dice.randrange(1, 64)
    lost = data[at : at + size]
    return data[:at] + data[at + size :] + lost


def _double_tail(dice: random.Random, data: bytes) -> bytes:
    return data + data[-dice.randrange(1, len(data) + 1) :]


def _repeated_block(dice: random.Random, data: bytes) -> bytes:
    """A block was written twice, the second time in the place of another."""
    size = dice.choice((8, 64, 512))
    a, b = (dice.randrange(max(1, len(data) - size)) for _ in range(2))
    return data[:b] + data[a : a + size] + data[b + size :]


BYTES: Final[tuple[tuple[str, int, Callable[[random.Random, bytes], bytes]], ...]] = (
    ("flip", 40, _flip),
    ("flip near the end", 16, _flip_at_the_end),
    ("cut", 10, _cut),
    ("lost blocks", 5, _lost_blocks),
    ("inserted", 4, _insert),
    ("hole", 8, _hole),
    ("noise", 5, _noise),
    ("missing piece", 3, _missing_piece),
    ("moved piece", 3, _moved),
    ("double tail", 3, _double_tail),
    ("repeated block", 4, _repeated_block),
)
_NAMES: Final = tuple(name for name, _, _ in BYTES)
_WHOLE: Final = (
    "swapped",
    "of another place",
    "empty",
    "gone",
    "folder",
    "pipe",
    "link",
)
"""What happens to whole files."""


def choose(dice: random.Random, files: Mapping[str, bytes], wanted: str) -> Damage:
    """Return some damage to one or two of the files whose keys match a pattern;
    their bytes do change.
    """
    keys = sorted(key for key in files if re.fullmatch(wanted, key))
    while True:
        found = _one(dice, files, keys)
        changed = {
            key: what
            for key, what in found.changes.items()
            if _is_change(key, what, files[key])
        }
        if changed:
            return Damage(found.what, changed)


def _is_change(key: str, what: Change, was: bytes) -> bool:
    """Whether anybody could know: a tag may be gone, and a version may travel
    without its claim.
    """
    may_go = key.endswith("/claim.json") or "/tags/" in key
    return what != was and not (may_go and what in (None, "folder"))


def _one(dice: random.Random, files: Mapping[str, bytes], keys: list[str]) -> Damage:
    # Shards by far outnumber the rest; each kind of file is as likely as the others.
    kinds = sorted({_kind(key) for key in keys})
    kind = dice.choice(kinds)
    key = dice.choice([each for each in keys if _kind(each) == kind])
    data = files[key]
    if not data or dice.random() < 0.08:
        return _whole_file(dice, files, keys, key)
    (name, _, damage) = dice.choices(BYTES, [weight for _, weight, _ in BYTES])[0]
    return Damage(f"{name} in {key}", {key: damage(dice, data)})


def _whole_file(
    dice: random.Random, files: Mapping[str, bytes], keys: list[str], key: str
) -> Damage:
    what = dice.choice(_WHOLE)
    alike = [each for each in files if _kind(each) == _kind(key) and each != key]
    if what in ("swapped", "of another place") and alike:
        other = dice.choice(sorted(alike))
        changes: dict[str, Change] = {key: files[other]}
        if what == "swapped":
            changes[other] = files[key]
        return Damage(f"{what}: {key}, {other}", changes)
    gone: Change = {"empty": b"", "gone": None}.get(
        what, what if what in ("folder", "pipe", "link") else b""
    )
    return Damage(f"{what}: {key}", {key: gone})


def _kind(key: str) -> str:
    """``plain/v1/data/train-00000-00.parquet``: data."""
    parts = key.split("/")
    return (
        "data"
        if "data" in parts
        else parts[-1]
        if len(parts) == 3 and parts[1] != "tags"
        else parts[-2]
    )


def put(root: Path, key: str, what: Change) -> None:
    """Put something into the place of a file, whatever is there."""
    path = root / key
    if path.is_symlink() or path.is_file() or path.is_fifo():
        path.unlink()
    elif path.is_dir():
        path.rmdir()
    if isinstance(what, bytes):
        path.write_bytes(what)
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        elsewhere = root.parent / "elsewhere"
        elsewhere.write_bytes(b"x")
        path.symlink_to(elsewhere)


def files_below(root: Path) -> dict[str, bytes]:
    """All files of a store, by key."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
