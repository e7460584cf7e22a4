"""The result of inspecting a source: its files, splits, columns and statistics,
frozen and JSON-able.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from tokenlake.base import numbers
from tokenlake.etl.introspection.column_names import ROLES, rank_of, role_of
from tokenlake.etl.introspection.mapping import (
    ColumnMapper,
    ColumnMapping,
    MappedColumn,
)
from tokenlake.etl.introspection.shapes import Shape
from tokenlake.etl.sources.rows import value_at

Kind = Literal[
    "text", "instruction", "chat", "preference", "unknown", "empty", "damaged"
]

NAMES: dict[Kind, str] = {
    "text": "raw text",
    "instruction": "instructions and answers",
    "chat": "chats",
    "preference": "preferences",
    "unknown": "no text found",
    "empty": "no records",
    "damaged": "not readable",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A column.

    Attributes:
        type: as text, nested types in full: ``list<struct<role: string, content:
            string>>``.
        nullable: whether it may hold nulls or, without a schema, did in the sample.
        role: what it is taken for, None for nothing.
    """

    name: str
    type: str
    nullable: bool
    role: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A split: of a dataset on the Hub, or as the names of files suggest; bytes are
    stored ones.
    """

    name: str
    files: int
    bytes: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something to know before a build.

    Attributes:
        file: which file, as in the listing; "" for the source as a whole.
        what: a sentence.
        fatal: whether a build of these files would fail by it.
    """

    file: str
    what: str
    fatal: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TextStatistics:
    """The texts of the sample.

    Attributes:
        column: where they are.
        records: how many were measured.
        mean_characters: of a text.
        ascii_share: of the characters, 0 to 1.
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
        name: for people, from the files' names.
        files, bytes: how many, and as stored.
        formats: such as ``jsonl.gz`` to number of files.
        rows: records, None where nothing is known.
        rows_exact: whether `rows` is counted (footers, whole files) or estimated from
            the sample.
        rows_margin: half of the range that holds the true number of records about 19
            times of 20; None: unknown.
        features: their columns, in order.
        kind: what they are good for.
        mapping: which column is what.
        text: of the sample, None where there is no text.
        sampled: records that were looked at.
        bad: how many of these are bad, by reason.
        sample: the first records, long strings cut.
        entry: options of a configuration's dataset, None where a build cannot read
            these files.
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
    sample: tuple[Mapping[str, Any], ...]
    entry: Mapping[str, Any] | None

    @property
    def records_in_words(self) -> str:
        """The number of records, as ``500 records`` or ``about 66.1 k records
        ±20%``.
        """
        if self.rows is None:
            return "unknown number of records"
        if self.rows_exact:
            return numbers.plural(self.rows, "record")
        words = f"about {numbers.short(self.rows)} records"
        if self.rows_margin is None or not self.rows:
            return f"{words}, judged by the beginning of files"
        return f"{words} ±{max(1, round(100 * self.rows_margin / self.rows))}%"

    @property
    def has_columns(self) -> bool:
        """Whether there are columns to speak of: plain text has none."""
        return any(not name.startswith("text") for name in self.formats)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """All that a look at a source found.

    Attributes:
        source: as it was given.
        configs: subsets of a dataset on the Hub, else empty.
        splits: see :class:`Split`; empty where nothing suggests any.
        files, bytes: of the whole listing.
        looked_into: how many files were opened.
        bytes_read: of them, in all.
        groups: at least one, the largest first.
        findings: damaged files, bad records and other things to know.
        proposal: a configuration as YAML, only comments where nothing can be built.
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
        """Whether the proposal is a configuration that a build can run (given a
        tokenizer).
        """
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
        """Return the contents that an inspection found, of its largest group of
        files.
        """
        group = found.groups[0]
        return cls(
            name=name,
            configs=found.configs,
            splits=tuple(split.name for split in found.splits),
            config=config,
            features={feature.name: feature.type for feature in group.features},
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
    """Find the columns of every role; a text that is no top-level column is looked for
    inside of objects.

    Such a text is named by its path: ``data.text``.
    """
    columns = dict(columns)
    for name, shape in columns.items():
        # A column of several types is one of strings where most values are: the others
        # are bad records.
        values = (
            [row[name] for row in rows if row.get(name) is not None]
            if shape.kind == "mixed"
            else []
        )
        if values and 2 * sum(isinstance(value, str) for value in values) >= len(
            values
        ):
            columns[name] = Shape("string", nullable=shape.nullable)
    lengths = {
        name: mean_length(rows, name)
        for name, shape in columns.items()
        if shape.is_text
    }
    direct = {
        role: name
        for role, name in explicit.items()
        if name in columns or "." not in name
    }
    found = mapper.map(ROLES, columns, explicit=direct, lengths=lengths)

    if "text" in explicit.keys() - direct.keys():
        return _with_text(
            found, MappedColumn("text", explicit["text"], "explicit", 1.0)
        )
    if kind_of(found) != "unknown":
        return found
    inner = [
        (depth, rank_of(name), path)
        for depth, path, name, shape in _inner(columns, "", 1)
        if shape.is_text and role_of(name) == "text"
    ]
    return (
        _with_text(found, MappedColumn("text", min(inner)[2], "synonym", 1.0))
        if inner
        else found
    )


def _with_text(mapping: ColumnMapping, text: MappedColumn) -> ColumnMapping:
    """Return `mapping` with the text elsewhere."""
    others = tuple(entry for entry in mapping.mapped if entry.role != "text")
    unmapped = tuple(entry for entry in mapping.unmapped if entry.role != "text")
    return ColumnMapping((text, *others), unmapped)


def kind_of(mapping: ColumnMapping) -> Kind:
    """Judge by the roles that have a column."""
    roles = mapping.columns.keys()
    if {"chosen", "rejected"} <= roles:
        return "preference"
    if "messages" in roles:
        return "chat"
    if {"instruction", "output"} <= roles:
        return "instruction"
    return "text" if "text" in roles else "unknown"


def mean_length(rows: Iterable[Mapping[str, Any]], path: str) -> float:
    """Return the mean characters of the strings in a column of the sample, 0.0 if
    there are none.
    """
    sizes = [
        len(value) for row in rows if isinstance(value := value_at(row, path), str)
    ]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _inner(
    columns: Mapping[str, Shape], before: str, depth: int
) -> list[tuple[int, str, str, Shape]]:
    """Return (depth, path, name, shape) of the columns one or two levels down."""
    found: list[tuple[int, str, str, Shape]] = []
    for name, shape in columns.items():
        path = f"{before}{name}"
        if depth > 1:
            found.append((depth, path, name, shape))
        if shape.kind == "struct" and depth < 3:
            found += _inner(dict(shape.fields), f"{path}.", depth + 1)
    return found
