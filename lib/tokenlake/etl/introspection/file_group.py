"""Groups of files that hold the same kind of records, judged by samples of some."""

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
from tokenlake.etl.sources.bad_reasons import BadReason, added_up, bad_in_words
from tokenlake.etl.sources.formats import COMPRESSION_ENDINGS
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import value_at

# Runs of characters that the name of a source may not have.
_NAME_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LARGE_TEXT: Final = 1 << 20  # mean bytes of text files, from which lines are documents
_MOST_BLANK_LINES: Final = 0.01  # share of blank lines up to which lines are documents
_FEWEST_LINES: Final = 8  # a list of documents has more lines than these
_HUGE_TEXT: Final = 256 << 20  # default of max_record_bytes: larger is no document
_SOURCE_NAME_LENGTH: Final = 64  # characters of a source's name, as datasets' names


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
        # In turn, so that the first records, which are shown, come from several files.
        rows: list[dict[str, Any]] = []
        rows_by_file = [look.rows for look in self.looks]
        for same_place in zip_longest(*rows_by_file):
            for row in same_place:
                if row is not None:
                    rows.append(row)
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
        """The format by the bytes if the names say another one; otherwise None."""
        if self.format == self.files[0].format:
            return None
        return self.format

    @property
    def delimiter(self) -> str | None:
        """The delimiter of CSV cells if it differs from the extension's; else None."""
        for look in self.looks:
            if look.delimiter is not None:
                return look.delimiter
        return None

    @property
    def text_mode(self) -> str | None:
        """``lines`` if the lines of text files look like documents; otherwise None.

        Lines are documents if a file is too large to be one document, or if the files
        have 1 MiB and more on average and hardly a blank line: a book has blank lines,
        a list of documents has none.
        """
        if self.format != "text" or not self.files:
            return None
        # The configuration says so.
        if self.files[0].text_mode == "lines":
            return "lines"
        sizes = [file.size for file in self.files]
        if max(sizes) > _HUGE_TEXT:
            return "lines"
        # Many bytes in files without blank lines: a list of documents.
        lines = 0
        blank_lines = 0
        for look in self.good:
            look_lines, look_blank_lines = look.lines
            lines += look_lines
            blank_lines += look_blank_lines
        mean_size = sum(sizes) / len(sizes)
        is_list = lines > _FEWEST_LINES and blank_lines <= _MOST_BLANK_LINES * lines
        if mean_size >= _LARGE_TEXT and is_list:
            return "lines"
        return None

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    def formats(self) -> dict[str, int]:
        """Return the number of files by format and compression (``jsonl.gz``)."""
        endings = {**COMPRESSION_ENDINGS, None: ""}
        file_counts: Counter[str] = Counter()
        for file in self.files:
            file_counts[f"{file.format}{endings[file.compression]}"] += 1
        return dict(sorted(file_counts.items()))

    def features(self) -> tuple[Feature, ...]:
        """Return the columns with their types and roles."""
        role_by_column: dict[str, str] = {}
        for mapped_column in self.mapping.mapped:
            role_by_column[mapped_column.column] = mapped_column.role
        features: list[Feature] = []
        for column, shape in self.columns.items():
            feature = Feature(
                name=column,
                type=str(shape),
                nullable=shape.nullable,
                role=role_by_column.get(column),
            )
            features.append(feature)
        return tuple(features)

    def row_count(self) -> RowEstimate | None:
        """Return the number of records, counted or estimated; None if it is unknown."""
        readable = self.good
        if not readable:
            return None
        # A text file that is one document is one record.
        if self.format == "text" and self.text_mode is None:
            return RowEstimate(len(self.files), 0)

        # Counted, if every file has a known number of records or cannot be read.
        counted_rows = 0
        settled_paths: set[str] = set()
        for look in self.looks:
            if look.damage is not None:
                settled_paths.add(look.file.path)
            elif look.total is not None:
                settled_paths.add(look.file.path)
                counted_rows += look.total
        if all(file.path in settled_paths for file in self.files):
            return RowEstimate(counted_rows, 0)
        return estimate_rows(self.files, self.looks)

    def statistics(self) -> TextStatistics | None:
        """Return the length and alphabet of the sampled texts; None without any."""
        column = self.content_field
        if column is None:
            return None
        texts: list[str] = []
        for row in self.rows:
            value = value_at(row, column)
            if isinstance(value, str):
                texts.append(value)
        if not texts:
            return None

        # For files that are one text each, the sample has the estimated length of the
        # complete text; the row has only its beginning.
        characters = 0
        ascii_characters = 0
        for text in texts:
            characters += len(text)
            ascii_characters += _count_ascii(text)
        lengths = [look.lengths for look in self.looks if look.lengths is not None]
        mean_length = characters / len(texts)
        if lengths:
            mean_length = sum(lengths) / len(lengths)
        return TextStatistics(
            column=column,
            records=len(texts),
            mean_characters=round(mean_length, 1),
            ascii_share=round(ascii_characters / max(1, characters), 4),
        )

    def findings(self) -> Iterator[Remark]:
        """Yield the faults of the sampled files and of their texts.

        Empty files are reported elsewhere.
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
        reasons = look.bad
        # Texts that a build could not use, if it did not judge them.
        if column is not None and look.judged is None:
            reasons = added_up([*look.bad, *_faults_of_texts(look.rows, column)])
        if reasons:
            records = max(look.judged or look.seen, 1)
            message = bad_in_words(reasons, records)
            yield Remark(file=look.file.path, what=message)

        # With a schema, a file without the column has no text at all. The path of a
        # text inside of an object begins with the name of its column.
        if column is not None and look.columns and FORMATS[self.format].schema:
            column_name = column
            if column not in self.columns:
                column_name = column.split(".")[0]
            if column_name not in look.columns:
                message = f"it has no column {column_name!r}"
                yield Remark(file=look.file.path, what=message, fatal=True)


def _faults_of_texts(
    rows: Iterable[Mapping[str, Any]], column: str
) -> Iterator[BadReason]:
    """Yield the faults of the texts of sampled records, whose places are unknown."""
    for row in rows:
        value = value_at(row, column)
        if isinstance(value, str):
            continue
        reason = "not_a_string"
        if value is None:
            reason = "missing_field"
            if column in row:
                reason = "null_text"
        yield BadReason(reason=reason, records=1, first="")


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
    """Judge files by samples of some, and join files that fit into one entry.

    An entry of a configuration has one kind of records and one set of options.

    Args:
        looked: Pairs (files, samples of some of them).
        mapper: Search for the columns of roles.
        explicit: Role -> column, where the caller knows it.

    Returns:
        Groups, the one with most bytes first.
    """
    empty_parts: list[FileGroup] = []
    parts_by_key: dict[tuple[object, ...], list[FileGroup]] = {}
    for files, looks in looked:
        part = _group_of(files, looks, mapper, explicit)
        if part.kind == "empty":
            empty_parts.append(part)
        else:
            parts_by_key.setdefault(part.key, []).append(part)

    # Empty files fit into any group: they join the first.
    if not parts_by_key:
        parts_by_key[()] = []
    first_parts = next(iter(parts_by_key.values()))
    first_parts += empty_parts

    groups: list[FileGroup] = []
    for joined in parts_by_key.values():
        if len(joined) == 1:
            groups.append(joined[0])
            continue
        # A joined group is judged anew, by the samples of all its parts.
        joined_files: list[InputFile] = []
        joined_looks: list[FileSample] = []
        for part in joined:
            joined_files += part.files
            joined_looks += part.looks
        joined_files.sort(key=lambda file: file.path)
        groups.append(_group_of(joined_files, joined_looks, mapper, explicit))
    # The largest group comes first: its columns describe the source.
    return sorted(groups, key=lambda group: (-group.bytes, group.files[0].path))


def _group_of(
    files: Sequence[InputFile],
    looks: Sequence[FileSample],
    mapper: ColumnMapper,
    explicit: Mapping[str, str],
) -> FileGroup:
    """Return the group of files whose samples have the same kind of records."""
    # 1. Find the columns of roles in the merged columns of the samples.
    tables: list[Mapping[str, Shape]] = []
    rows: list[dict[str, Any]] = []
    has_remarks = False
    has_damage = False
    for look in looks:
        rows += look.rows
        if look.columns:
            tables.append(look.columns)
        if look.damage is not None:
            has_damage = has_damage or look.file.size > 0
        elif look.remark is not None:
            has_remarks = True
    columns = merged_columns(tables)
    mapping = mapped(mapper, columns, rows, explicit)
    # 2. The kind follows from the roles. Without columns nothing was read: the files
    # are empty, too large to sample, or damaged.
    kind: Kind = "empty"
    if columns:
        kind = kind_of(mapping)
    elif has_remarks:
        kind = "unknown"
    elif has_damage:
        kind = "damaged"
    return FileGroup(
        files=tuple(files),
        looks=tuple(looks),
        columns=columns,
        mapping=mapping,
        kind=kind,
    )


def name_of(files: Iterable[InputFile]) -> str:
    """Return a name for a source: the common beginning of the files' names.

    Numbers at its end are left out: ``train-00000-of-00042.parquet`` is ``train``.
    """
    stems: list[str] = []
    for file in files:
        file_name = re.sub(r"-\d+-of-\d+", "", PurePosixPath(file.path).name)
        stems.append(file_name.partition(".")[0])
    common_stem = os.path.commonprefix(stems)  # noqa: RUF071 - characters are meant
    # A common beginning that is no whole name ends in a number that was cut.
    if common_stem not in stems:
        common_stem = re.sub(r"[\d._-]*$", "", common_stem)
    return source_name(common_stem) or "data"


def source_name(text: str) -> str:
    """Return a text without the characters that a source's name may not have.

    It is empty if no character remains.
    """
    plain_text = _NAME_CHARACTERS.sub("-", text).strip("._-")
    return plain_text[:_SOURCE_NAME_LENGTH].rstrip("._-")
