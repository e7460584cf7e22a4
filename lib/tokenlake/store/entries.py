"""What a version consists of: shards, other files, quarantined records, and their sums.

Long tables of a manifest, read column by column.

A manifest may list ten thousand shards, and every value of every entry is checked before it is believed. One by one
that is a million calls; here a column is checked as a whole. These checks only ever say yes or no, and yes only where
the reader of one entry would accept each: what they do not accept is read again one by one, which says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from operator import eq, itemgetter, lt
from typing import Any, Final, Self, cast, final

from tokenlake.store.layout import MAX_PART, MAX_UNIT, SPLIT_NAME, key_problem, shard_path
from tokenlake.store.sealed import MAX_COUNT, SHA256, Fields

_HEX: Final = re.compile(r"[0-9a-f]*")


def columns(values: list[Any], keys: tuple[str, ...]) -> list[tuple[Any, ...]] | None:
    """Return the columns of objects that have these keys and no others; None if not all are such objects."""
    if not are_all(values, dict) or not set(map(len, values)) <= {len(keys)}:
        return None
    try:
        return [tuple(map(itemgetter(key), values)) for key in keys]
    except KeyError:
        return None


def are_all(values: Iterable[Any], kind: type) -> bool:
    """Say whether the type of each value is this very one: True is no int."""
    return set(map(type, values)) <= {kind}


def are_counts(column: Collection[Any], low: int = 0, high: int = MAX_COUNT) -> bool:
    """Say whether all are integers of ``low .. high``."""
    return not column or (are_all(column, int) and low <= min(column) and max(column) <= high)


def are_hex(column: Collection[Any], digits: int, *, more: bool = False) -> bool:
    """Say whether all are ``digits`` lower-case hexadecimal digits; ``more``: or twice, three times ... as many."""
    if not are_all(column, str) or _HEX.fullmatch("".join(column)) is None:
        return False
    lengths = set(map(len, cast("Collection[str]", column)))
    return all(length % digits == 0 and length > 0 if more else length == digits for length in lengths)


def flat(column: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """Yield the values of all lists of a column."""
    return chain.from_iterable(column)


_DIGITS: Final = 32  # of a logical hash, or a multiple
_LOGICAL: Final = re.compile(rf"(?:[0-9a-f]{{{_DIGITS}}})+")
_SHARD: Final = (
    *("path", "split", "unit", "part", "bytes", "sha256", "rows", "tokens", "documents"),
    *("row_groups", "logical"),
)
_FILE: Final = ("bytes", "sha256")


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
        return {
            "path": self.path,
            "split": self.split,
            "unit": self.unit,
            "part": self.part,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "rows": self.rows,
            "tokens": self.tokens,
            "documents": self.documents,
            "row_groups": list(self.row_groups),
            "logical": dict(self.logical),
        }

    @classmethod
    def read_all(cls, source: Fields, key: str) -> tuple[Self, ...]:
        """Read a list of entries; equal row groups are one tuple."""
        found = cls._all(source.plain_list(key))
        return tuple(map(cls.read, source.children(key))) if found is None else found

    @classmethod
    def _all(cls, values: list[Any]) -> tuple[Self, ...] | None:
        found = columns(values, _SHARD)
        if found is None:
            return None
        paths, splits, units, parts, sizes, hashes, rows, tokens, documents, groups, logical = found
        well = (
            are_counts(units, high=MAX_UNIT)
            and are_counts(parts, high=MAX_PART)
            and are_counts(sizes, low=1)
            and are_counts(rows)
            and are_counts(tokens)
            and are_counts(documents)
            and are_hex(hashes, 64)
            and are_all(splits, str)
            and all(map(SPLIT_NAME.fullmatch, set(splits)))
            and all(map(eq, map(shard_path, splits, units, parts), paths))
            and are_all(logical, dict)
            and are_hex(list(flat(map(dict.values, logical))), _DIGITS, more=True)
        )
        starts = _shared(groups, rows) if well else None
        if starts is None:
            return None
        return tuple(
            cls(
                path=path,
                split=split,
                unit=unit,
                part=part,
                bytes=size,
                sha256=sha256,
                rows=count,
                tokens=ids,
                documents=texts,
                row_groups=first_rows,
                logical=columns_hashes,
            )
            for path, split, unit, part, size, sha256, count, ids, texts, first_rows, columns_hashes in zip(
                paths,
                splits,
                units,
                parts,
                sizes,
                hashes,
                rows,
                tokens,
                documents,
                starts,
                logical,
                strict=True,
            )
        )

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


def _shared(groups: Collection[Any], rows: Iterable[int]) -> list[tuple[int, ...]] | None:
    """Return the first rows as tuples, one for each list; None if they are no such numbers, or not of the rows."""
    distinct = {id(group): group for group in groups}
    if not are_all(distinct.values(), list) or not are_all(flat(distinct.values()), int):
        return None
    tuples = {key: tuple(group) for key, group in distinct.items()}
    if not all(map(_ascend, tuples.values())):
        return None
    found = [tuples[id(group)] for group in groups]
    # No row groups, no rows; else the last one begins before the end.
    fit = all(starts[-1] < count if starts else not count for starts, count in zip(found, rows, strict=True))
    return found if fit else None


def _ascend(starts: tuple[int, ...]) -> bool:
    return not starts or (starts[0] == 0 and all(map(lt, starts, starts[1:])))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and hash of a file that is not a shard (card, config, tokenizer, ledger record, quarantine)."""

    bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "sha256": self.sha256}

    @classmethod
    def read_all(cls, source: Fields, key: str) -> dict[str, Self]:
        """Read an object of entries."""
        named = source.json_object(key)
        found = columns(list(named.values()), _FILE)
        if found is None or not (are_counts(found[0]) and are_hex(found[1], 64)):
            return {name: cls.read(entry) for name, entry in source.named_children(key).items()}
        entries = zip(*found, strict=True)
        return {
            name: cls(bytes=size, sha256=sha256) for name, (size, sha256) in zip(named, entries, strict=True)
        }

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
