"""What a version consists of: shards, other files, quarantined records, and their sums."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, Self, final

from tokenlake.sealed import SHA256, Fields
from tokenlake.storage.keys import SPLIT_NAME, key_problem
from tokenlake.storage.layout import MAX_PART, MAX_UNIT, shard_path

_LOGICAL: Final = re.compile(r"(?:[0-9a-f]{32})+")


def read_path(source: Fields, key: str) -> str:
    """Read a path relative to the version; one that could leave it is an IntegrityError."""
    path = source.text(key)
    if (problem := key_problem(path)) is not None:
        source.fail(key, f"a path below the version's folder ({problem})", path)
    return path


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One Parquet file of the dataset.

    Attributes:
        path: ``data/train-00017-00.parquet``, relative to the version.
        split, unit, part: what the path says.
        bytes, sha256: of the file.
        rows: rows of the file (packed: sequences; tokens: documents).
        tokens: ids that are not padding (content, BOS and EOS): the sum of ``segment_lengths``.
        documents: documents whose first piece (``start == 0``) lies in the file.
        row_groups: first row of each row group, ascending from 0.
        logical: column -> hash of its values, independent of encoding and of row groups.
    """

    path: str
    split: str
    unit: int
    part: int
    bytes: int
    sha256: str
    rows: int
    tokens: int
    documents: int
    row_groups: tuple[int, ...]
    logical: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "row_groups": list(self.row_groups)}

    @classmethod
    def read(cls, source: Fields) -> Self:
        """Read one entry; IntegrityError for anything that no writer of ours would write."""
        found = cls(
            path=read_path(source, "path"),
            split=source.text("split", SPLIT_NAME),
            unit=source.count("unit", high=MAX_UNIT),
            part=source.count("part", high=MAX_PART),
            bytes=source.count("bytes", low=1),
            sha256=source.text("sha256", SHA256),
            rows=source.count("rows"),
            tokens=source.count("tokens"),
            documents=source.count("documents"),
            row_groups=source.count_list("row_groups"),
            logical=source.texts("logical", _LOGICAL),
        )
        source.end()
        found._check(source)
        return found

    def _check(self, source: Fields) -> None:
        expected = shard_path(self.split, self.unit, self.part)
        if self.path != expected:
            source.fail("path", f"{expected}, by its split, unit and part", self.path)
        starts = self.row_groups
        ascending = all(a < b for a, b in pairwise((*starts, self.rows)))
        if not ascending or (self.rows > 0 and starts[:1] != (0,)):
            source.fail(
                "row_groups", f"ascending first rows from 0, below the {self.rows} rows", list(starts)
            )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and hash of a file that is not a shard (card, config, tokenizer, ledger record, quarantine)."""

    bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, source: Fields) -> Self:
        found = cls(bytes=source.count("bytes"), sha256=source.text("sha256", SHA256))
        source.end()
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """The bad records of one unit: ``quarantine/00017.parquet``."""

    path: str
    bytes: int
    sha256: str
    rows: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, source: Fields) -> Self:
        found = cls(
            path=read_path(source, "path"),
            bytes=source.count("bytes", low=1),
            sha256=source.text("sha256", SHA256),
            rows=source.count("rows", low=1),
        )
        source.end()
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over shards: of a version, or of one split of it."""

    files: int
    bytes: int
    rows: int
    tokens: int
    documents: int

    @classmethod
    def of(cls, shards: Iterable[ShardEntry]) -> Self:
        found = list(shards)
        return cls(
            files=len(found),
            bytes=sum(shard.bytes for shard in found),
            rows=sum(shard.rows for shard in found),
            tokens=sum(shard.tokens for shard in found),
            documents=sum(shard.documents for shard in found),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
