"""The result of inspecting a source: files, splits, columns and statistics.

It is frozen and JSON-able.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, final

from tokenlake.base import numbers
from tokenlake.etl.introspection.column_names import ROLES, rank_of, role_of
from tokenlake.etl.introspection.mapping import (
    ColumnMapper,
    ColumnMapping,
    MappedColumn,
    UnmappedRole,
)
from tokenlake.etl.introspection.shapes import Shape
from tokenlake.etl.sources.bad_reasons import BadReason, bad_in_words
from tokenlake.etl.sources.rows import value_at

Kind = Literal[
    "text", "instruction", "chat", "preference", "unknown", "empty", "damaged"
]
"""Kind of the records of some files. ``unknown``: no column is clearly the text."""

NAMES: dict[Kind, str] = {
    "text": "raw text",
    "instruction": "instructions and answers",
    "chat": "chats",
    "preference": "preferences",
    "unknown": "no text found",
    "empty": "no records",
    "damaged": "not readable",
}
"""Kind -> its name for people."""

_INNER_DEPTH: Final = 3  # levels at which a text is searched; 1 is that of columns


_LEAST_PRESENCE: Final = 0.02
"""Smallest share of the sampled records that have a column, for one that is used."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A column.

    Attributes:
        name: Name of the column.
        type: Type as text, with nested types in full: ``list<struct<role: string,
            content: string>>``.
        nullable: True if it may hold nulls; without a schema, if it did in the sample.
        role: Role that the column has; None for none.
    """

    name: str
    type: str
    nullable: bool
    role: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A split of a dataset on the Hub, or one that the names of files suggest.

    Attributes:
        name: Name of the split.
        files: Number of files.
        bytes: Stored bytes.
    """

    name: str
    files: int
    bytes: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something to know before a build.

    Attributes:
        file: File, as in the listing; "" for the source as a whole.
        what: Sentence that states it.
        fatal: True if a build of these files would fail by it.
    """

    file: str
    what: str
    fatal: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TextStatistics:
    """The texts of the sample.

    Attributes:
        column: Column of the texts.
        records: Number of texts that were measured.
        mean_characters: Mean number of characters of a text.
        ascii_share: Share of ASCII in the characters, 0 to 1.
    """

    column: str
    records: int
    mean_characters: float
    ascii_share: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Files that hold the same kind of records.

    Attributes:
        name: Name for people, from the files' names.
        files: Number of files.
        bytes: Stored bytes.
        formats: Format and compression, such as ``jsonl.gz`` -> number of files.
        rows: Number of records; None if nothing is known about it.
        rows_exact: True if `rows` is counted (footers, complete files), False if it is
            estimated from the sample.
        rows_margin: Half of the range that holds the true number of records about 19
            times of 20; None if unknown.
        features: Columns, in order.
        kind: Kind of the records.
        mapping: Columns of the roles.
        text: Statistics of the sampled texts; None if there is no text.
        sampled: Number of sampled records.
        bad: Number of bad records in the sample, by reason.
        first_bad: Place of the first bad record of each reason (``a.jsonl:12``).
        judged: True if the sampled records were judged as a build judges them; False
            if `bad` has only those that cannot be read.
        sample: First records, with long strings cut.
        entry: Options of a configuration's dataset; None if a build cannot read these
            files.
    """

    name: str
    files: int
    bytes: int
    formats: Mapping[str, int]
    rows: int | None
    rows_exact: bool
    rows_margin: int | None
    features: tuple[Feature, ...]
    kind: Kind
    mapping: ColumnMapping
    text: TextStatistics | None
    sampled: int
    bad: Mapping[str, int]
    first_bad: Mapping[str, str]
    judged: bool
    sample: tuple[Mapping[str, Any], ...]
    entry: Mapping[str, Any] | None

    @property
    def bad_in_words(self) -> str:
        """The bad records of the sample in words; "" without any.

        Example: ``3 of 2,000 sampled records are bad: invalid_json 3 (first:
        a.jsonl:12)``.
        """
        reasons: list[BadReason] = []
        for reason, records in self.bad.items():
            first = self.first_bad[reason]
            reasons.append(BadReason(reason=reason, records=records, first=first))
        if not reasons:
            return ""
        return bad_in_words(reasons, self.sampled)

    @property
    def records_in_words(self) -> str:
        """The number of records in words.

        Examples: ``500 records``, ``about 66.1 k records ±20%``.
        """
        if self.rows is None:
            return "unknown number of records"
        if self.rows_exact:
            return numbers.plural(self.rows, "record")
        words = f"about {numbers.short(self.rows)} records"
        # Files that can be read from their beginning only have no margin.
        if self.rows_margin is None or not self.rows:
            return f"{words}, judged by the beginning of files"
        percentage = max(1, round(100 * self.rows_margin / self.rows))
        return f"{words} ±{percentage}%"

    @property
    def has_columns(self) -> bool:
        """True if there are columns: plain text has none."""
        return any(not form.startswith("text") for form in self.formats)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """All that an inspection of a source finds.

    Attributes:
        source: Source, as the user named it.
        configs: Subsets of a dataset on the Hub; empty for other sources.
        splits: Splits; empty if nothing suggests any.
        files: Number of files of the listing.
        bytes: Stored bytes of the listing.
        looked_into: Number of files that were opened.
        bytes_read: Bytes that were read of them.
        groups: Groups of files, at least one, the largest first.
        findings: Damaged files, bad records and other remarks.
        proposal: Configuration as YAML; only comments if nothing can be built.
    """

    source: tuple[str, ...]
    configs: tuple[str, ...]
    splits: tuple[Split, ...]
    files: int
    bytes: int
    looked_into: int
    bytes_read: int
    groups: tuple[Group, ...]
    findings: tuple[Remark, ...]
    proposal: str

    @property
    def runnable(self) -> bool:
        """True if a build can run the proposal, once a tokenizer is named."""
        return any(group.entry is not None for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; keys are stable."""
        return {**asdict(self), "runnable": self.runnable}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetMetadata:
    """Contents of a dataset, determined without downloading it.

    Attributes:
        name: Path or id of the dataset.
        configs: Names of the subsets; empty if it has none.
        splits: Names of the splits; empty if it has none.
        config: Subset that the other fields describe: the requested one, the default
            one, otherwise the first.
        features: Column -> its type.
        roles: Role, such as ``text`` or ``messages``, -> the column that has it.
        num_rows: Number of rows; None if it can be known by reading only.
        num_rows_exact: True if the rows were counted, False if their number is
            estimated.
        bytes: Size as stored.
        remarks: Remarks, such as the choice of the first subset.

    Example:
        >>> from tokenlake.data_pipeline import DatasetIntrospector
        >>> metadata = DatasetIntrospector().discover("data/books").unwrap()
        >>> metadata.features, metadata.roles
        ({'text': 'string', 'lang': 'string'}, {'text': 'text', 'lang': 'lang'})
    """

    name: str
    configs: tuple[str, ...]
    splits: tuple[str, ...]
    config: str | None
    features: Mapping[str, str]
    roles: Mapping[str, str]
    num_rows: int | None
    num_rows_exact: bool
    bytes: int
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, name: str, found: Inspection, config: str | None) -> DatasetMetadata:
        """Return the contents of the largest group of files of an inspection."""
        # A build of a whole source takes its largest group; the others are remarks.
        group = found.groups[0]
        type_by_column: dict[str, str] = {}
        for feature in group.features:
            type_by_column[feature.name] = feature.type
        return cls(
            name=name,
            configs=found.configs,
            splits=tuple(split.name for split in found.splits),
            config=config,
            features=type_by_column,
            roles=group.mapping.columns,
            num_rows=group.rows,
            num_rows_exact=group.rows_exact,
            bytes=found.bytes,
            remarks=tuple(remark.what for remark in found.findings),
        )


def mapped(
    mapper: ColumnMapper,
    columns: Mapping[str, Shape],
    rows: Sequence[Mapping[str, Any]],
    explicit: Mapping[str, str],
) -> ColumnMapping:
    """Find the column of each role, also for texts inside of objects.

    A text that is no top-level column is searched inside of objects, and is named by
    its path: ``data.text``.

    Args:
        mapper: Search for the columns of roles.
        columns: Column -> type.
        rows: Sampled records.
        explicit: Role -> column or path, where the caller knows it.
    """
    typed_columns: dict[str, Shape] = {}
    lengths: dict[str, float] = {}
    for column, shape in columns.items():
        # A column of several types is one of strings if most values are: the others are
        # bad records.
        if shape.kind == "mixed" and _has_mostly_strings(rows, column):
            shape = Shape("string", nullable=shape.nullable)
        typed_columns[column] = shape
        if shape.is_text:
            lengths[column] = mean_length(rows, column)

    # 1. Top-level columns. A path that the caller gave is no column: it comes below. A
    #    name without a point is passed on even if it is missing, for the error.
    explicit_columns = dict(explicit)
    for role, column in explicit.items():
        if "." in column and column not in typed_columns:
            del explicit_columns[role]
    common_columns = _without_rare(typed_columns, rows, explicit_columns)
    mapping = mapper.map(
        ROLES, common_columns, explicit=explicit_columns, lengths=lengths
    )
    if kind_of(mapping) == "unknown":
        mapping = mapper.map(
            ROLES, typed_columns, explicit=explicit_columns, lengths=lengths
        )

    # 2. The path of a text that the caller gave.
    if "text" in explicit and "text" not in explicit_columns:
        text_path = explicit["text"]
        return _with_text(mapping, MappedColumn("text", text_path, "explicit", 1.0))
    if kind_of(mapping) != "unknown":
        return mapping

    # 3. A text inside of objects: the one that is least deep, then the one with the
    #    most usual name, then the first by path.
    candidates: list[tuple[int, int, str]] = []
    for depth, path, name, shape in _inner_columns(typed_columns, "", 1):
        if shape.is_text and role_of(name) == "text":
            candidates.append((depth, rank_of(name), path))
    if not candidates:
        return mapping
    _, _, text_path = min(candidates)
    return _with_text(mapping, MappedColumn("text", text_path, "synonym", 1.0))


def _without_rare(
    columns: Mapping[str, Shape],
    rows: Sequence[Mapping[str, Any]],
    explicit: Mapping[str, str],
) -> dict[str, Shape]:
    """Return the columns without those that hardly any sampled record has.

    A single odd record must not decide how all others are read. Columns that the caller
    named stay.
    """
    named_columns = set(explicit.values())
    common_columns: dict[str, Shape] = {}
    for column, shape in columns.items():
        present = sum(row.get(column) is not None for row in rows)
        is_rare = present < _LEAST_PRESENCE * len(rows)
        if not is_rare or column in named_columns:
            common_columns[column] = shape
    return common_columns


def _has_mostly_strings(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Return True if at least half of a column's sampled values are strings."""
    values = 0
    strings = 0
    for row in rows:
        value = row.get(column)
        if value is not None:
            values += 1
        if isinstance(value, str):
            strings += 1
    return values > 0 and 2 * strings >= values


def _with_text(mapping: ColumnMapping, text: MappedColumn) -> ColumnMapping:
    """Return a mapping with another column of the role `text`."""
    mapped_columns = [text]
    for mapped_column in mapping.mapped:
        if mapped_column.role != "text":
            mapped_columns.append(mapped_column)
    unmapped_roles: list[UnmappedRole] = []
    for unmapped_role in mapping.unmapped:
        if unmapped_role.role != "text":
            unmapped_roles.append(unmapped_role)
    return ColumnMapping(tuple(mapped_columns), tuple(unmapped_roles))


def kind_of(mapping: ColumnMapping) -> Kind:
    """Return the kind of records whose roles have columns, the most specific first."""
    roles = mapping.columns.keys()
    if {"chosen", "rejected"} <= roles:
        return "preference"
    if "messages" in roles:
        return "chat"
    if {"instruction", "output"} <= roles:
        return "instruction"
    if "text" in roles:
        return "text"
    return "unknown"


def mean_length(rows: Iterable[Mapping[str, Any]], path: str) -> float:
    """Return the mean characters of a column's sampled strings; 0.0 if it has none."""
    lengths: list[int] = []
    for row in rows:
        value = value_at(row, path)
        if isinstance(value, str):
            lengths.append(len(value))
    if not lengths:
        return 0.0
    return sum(lengths) / len(lengths)


def _inner_columns(
    columns: Mapping[str, Shape], prefix: str, depth: int
) -> list[tuple[int, str, str, Shape]]:
    """Return (depth, path, name, shape) of the columns one or two levels down.

    Args:
        columns: Name -> type, at this level.
        prefix: Path of this level: "", or a path that ends in a point.
        depth: Level, 1 for that of the columns.
    """
    inner_columns: list[tuple[int, str, str, Shape]] = []
    for name, shape in columns.items():
        path = f"{prefix}{name}"
        if depth > 1:
            inner_columns.append((depth, path, name, shape))
        if shape.kind == "struct" and depth < _INNER_DEPTH:
            fields = dict(shape.fields)
            inner_columns += _inner_columns(fields, f"{path}.", depth + 1)
    return inner_columns
