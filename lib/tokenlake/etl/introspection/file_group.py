"""Groups of files that hold the same kind of records, judged by the files that were
opened.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any, Final, final

from tokenlake.config.formats import FORMATS, Format
from tokenlake.etl.introspection.inspection import (
    Feature,
    Kind,
    Remark,
    TextStatistics,
    kind_of,
    mapped,
)
from tokenlake.etl.introspection.mapping import ColumnMapper, ColumnMapping
from tokenlake.etl.introspection.row_estimate import RowEstimate, estimate_rows
from tokenlake.etl.introspection.sample import FileSample
from tokenlake.etl.introspection.shapes import Shape, merged_columns
from tokenlake.etl.sources.formats import COMPRESSION_ENDINGS
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import value_at

_NAME_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
# Mean bytes of text files, from which on lines may be documents.
_LARGE_TEXT: Final = 1 << 20
# Share of blank lines up to which lines may be documents.
_MOST_BLANK_LINES: Final = 0.01
_FEWEST_LINES: Final = 8  # of a list of documents: more than these
# Default of max_record_bytes: a larger file is no document.
_HUGE_TEXT: Final = 256 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that hold the same kind of records.

    Attributes:
        files: Files of the group.
        looks: Samples of some of the files.
        columns: Name -> type, merged over the samples that have columns.
        mapping: Roles of the columns.
        kind: Kind of records.
    """

    files: tuple[InputFile, ...]
    looks: tuple[FileSample, ...]
    columns: Mapping[str, Shape]
    mapping: ColumnMapping
    kind: Kind

    @property
    def key(self) -> tuple[object, ...]:
        """The properties that files must share to be one entry of a configuration."""
        return (
            self.kind,
            self.content_field,
            self.retyped,
            self.delimiter,
            self.text_mode,
        )

    @property
    def good(self) -> tuple[FileSample, ...]:
        """The samples of readable files."""
        return tuple(look for look in self.looks if look.damage is None)

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The sampled records, in turn one of every file."""
        rows: list[dict[str, Any]] = []
        for turn in zip_longest(*(look.rows for look in self.looks)):
            rows += [row for row in turn if row is not None]
        return tuple(rows)

    @property
    def content_field(self) -> str | None:
        """The column of the text; None if there is none."""
        return self.mapping.columns.get("text")

    @property
    def format(self) -> Format:
        """The format of the files, by their bytes."""
        return self.looks[0].file.format

    @property
    def retyped(self) -> Format | None:
        """The format by the bytes where the files' names say another one; else None."""
        return self.format if self.format != self.files[0].format else None

    @property
    def delimiter(self) -> str | None:
        """The delimiter of CSV cells where it differs from the extension's; else
        None.
        """
        return next(
            (look.delimiter for look in self.looks if look.delimiter is not None), None
        )

    @property
    def text_mode(self) -> str | None:
        """``lines`` where the lines of text files look like documents, else None.

        Lines are documents where a file is too large to be one document, or where the
        files have 1 MiB and more on average and hardly a blank line: a book has blank
        lines, a list of documents has none.
        """
        if self.format != "text" or not self.files:
            return None
        if self.files[0].text_mode == "lines":
            return "lines"
        if max(file.size for file in self.files) > _HUGE_TEXT:
            return "lines"
        lines = sum(look.lines[0] for look in self.good)
        blank_lines = sum(look.lines[1] for look in self.good)
        mean_size = self.bytes / len(self.files)
        has_few_blank_lines = (
            lines > _FEWEST_LINES and blank_lines <= _MOST_BLANK_LINES * lines
        )
        return "lines" if mean_size >= _LARGE_TEXT and has_few_blank_lines else None

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    def formats(self) -> dict[str, int]:
        """Return the number of files of each format and compression, such as
        ``jsonl.gz``.
        """
        endings = {**COMPRESSION_ENDINGS, None: ""}
        file_counts = Counter(
            f"{file.format}{endings[file.compression]}" for file in self.files
        )
        return dict(sorted(file_counts.items()))

    def features(self) -> tuple[Feature, ...]:
        """Return the columns with their types and roles."""
        roles = {column: role for role, column in self.mapping.columns.items()}
        return tuple(
            Feature(
                name=name,
                type=str(shape),
                nullable=shape.nullable,
                role=roles.get(name),
            )
            for name, shape in self.columns.items()
        )

    def row_count(self) -> RowEstimate | None:
        """Return the number of records, counted or estimated; None if it is unknown."""
        readable = self.good
        if not readable:
            return None
        if self.format == "text" and self.text_mode is None:
            return RowEstimate(len(self.files), 0)

        # Counted: every file has a known number of records, or cannot be read.
        totals = {
            look.file.path: look.total for look in readable if look.total is not None
        }
        damaged_paths = {
            look.file.path for look in self.looks if look.damage is not None
        }
        if all(
            file.path in totals or file.path in damaged_paths for file in self.files
        ):
            return RowEstimate(
                sum(totals[file.path] for file in self.files if file.path in totals), 0
            )
        return estimate_rows(self.files, self.looks)

    def statistics(self) -> TextStatistics | None:
        """Return the length and the alphabet of the sampled texts; None without
        texts.
        """
        column = self.content_field
        if column is None:
            return None
        values = [value_at(row, column) for row in self.rows]
        texts = [text for text in values if isinstance(text, str)]
        if not texts:
            return None

        # Of files that are one text each, the sample knows the length of the whole
        # text.
        lengths = [look.lengths for look in self.looks if look.lengths is not None]
        if not lengths:
            lengths = [float(len(text)) for text in texts]
        characters = sum(len(text) for text in texts)
        ascii_characters = sum(_count_ascii(text) for text in texts)
        return TextStatistics(
            column=column,
            records=len(texts),
            mean_characters=round(sum(lengths) / len(lengths), 1),
            ascii_share=round(ascii_characters / max(1, characters), 4),
        )

    def findings(self) -> Iterator[Remark]:
        """Yield the faults of the sampled files and of their texts; empty files are
        reported elsewhere.
        """
        for look in self.looks:
            if not look.file.size:
                continue
            path = look.file.path
            if look.damage is not None:
                yield Remark(file=path, what=look.damage, fatal=True)
            elif look.remark is not None:
                yield Remark(file=path, what=look.remark)
            else:
                yield from self._faults_of_records(look)

    def _faults_of_records(self, look: FileSample) -> Iterator[Remark]:
        """Yield the number of bad records of a file, and the column that it lacks."""
        column = self.content_field
        reasons = Counter(look.bad)
        if column is not None:
            for row in look.rows:
                value = value_at(row, column)
                if value is None:
                    reasons["null_text" if column in row else "missing_field"] += 1
                elif not isinstance(value, str):
                    reasons["not_a_string"] += 1
        if reasons:
            counts = ", ".join(
                f"{reason} {count:,}" for reason, count in sorted(reasons.items())
            )
            message = f"{reasons.total():,} of {max(look.seen, 1):,} sampled records are bad: {counts}"
            yield Remark(file=look.file.path, what=message)
        if column is not None and look.columns and FORMATS[self.format].schema:
            top = column if column in self.columns else column.split(".")[0]
            if top not in look.columns:
                yield Remark(
                    file=look.file.path, what=f"it has no column {top!r}", fatal=True
                )


def _count_ascii(text: str) -> int:
    """Return the number of ASCII characters of a text."""
    if text.isascii():
        return len(text)
    return sum(character < "\x80" for character in text)


def merged_groups(
    looked: Iterable[tuple[Sequence[InputFile], Sequence[FileSample]]],
    mapper: ColumnMapper,
    explicit: Mapping[str, str],
) -> list[FileGroup]:
    """Judge files by samples of some, and join those that can be one entry of a
    configuration.

    Args:
        looked: Pairs (files, samples of some of them).
        mapper: Search for the columns of roles.
        explicit: Role -> column, where the caller knows it.

    Returns:
        Groups, the one with most bytes first.
    """
    parts = [_group_of(files, looks, mapper, explicit) for files, looks in looked]
    parts_by_key: dict[tuple[object, ...], list[FileGroup]] = {}
    for part in parts:
        if part.kind != "empty":
            parts_by_key.setdefault(part.key, []).append(part)

    # Empty files fit into any group: they join the first.
    if not parts_by_key:
        parts_by_key[()] = []
    first_parts = next(iter(parts_by_key.values()))
    first_parts += [part for part in parts if part.kind == "empty"]

    groups: list[FileGroup] = []
    for joined in parts_by_key.values():
        if len(joined) == 1:
            groups.append(joined[0])
            continue
        files: list[InputFile] = []
        looks: list[FileSample] = []
        for part in joined:
            files += part.files
            looks += part.looks
        files.sort(key=lambda file: file.path)
        groups.append(_group_of(files, looks, mapper, explicit))
    return sorted(groups, key=lambda group: (-group.bytes, group.files[0].path))


def _group_of(
    files: Sequence[InputFile],
    looks: Sequence[FileSample],
    mapper: ColumnMapper,
    explicit: Mapping[str, str],
) -> FileGroup:
    """Return the group of files whose samples have the same kind of records."""
    columns = merged_columns(look.columns for look in looks if look.columns)
    rows: list[dict[str, Any]] = []
    for look in looks:
        rows += look.rows
    mapping = mapped(mapper, columns, rows, explicit)
    kind: Kind = "empty"
    if columns:
        kind = kind_of(mapping)
    elif any(look.damage is None and look.remark is not None for look in looks):
        kind = "unknown"
    elif any(look.damage is not None and look.file.size for look in looks):
        kind = "damaged"
    return FileGroup(
        files=tuple(files),
        looks=tuple(looks),
        columns=columns,
        mapping=mapping,
        kind=kind,
    )


def name_of(files: Iterable[InputFile]) -> str:
    """Return a name for a source of a configuration: the common beginning of the
    files' names.
    """
    names = (
        re.sub(r"-\d+-of-\d+", "", PurePosixPath(file.path).name) for file in files
    )
    stems = [name.partition(".")[0] for name in names]
    common = os.path.commonprefix(stems)  # noqa: RUF071 - characters are meant
    plain = common if common in stems else re.sub(r"[\d._-]*$", "", common)
    return source_name(plain) or "data"


def source_name(text: str) -> str:
    """Return `text` without the characters that a source's name may not have; "" if
    none remain.
    """
    return _NAME_CHARACTERS.sub("-", text).strip("._-")[:64].rstrip("._-")
