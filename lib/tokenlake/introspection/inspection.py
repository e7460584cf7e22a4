"""What was found out about a source; every part is frozen and JSON-able."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from tokenlake.introspection.kind import Kind
from tokenlake.introspection.mapping import ColumnMapping


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A column.

    Attributes:
        type: as text, nested types in full: ``list<struct<role: string, content: string>>``.
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
    """A split: of a dataset on the Hub, or as the names of files suggest; bytes are stored ones."""

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
        rows_exact: whether `rows` is counted (footers, whole files) or estimated from the sample.
        features: their columns, in order.
        kind: what they are good for.
        mapping: which column is what.
        text: of the sample, None where there is no text.
        sampled: records that were looked at.
        bad: how many of these are bad, by reason.
        sample: the first records, long strings cut.
        entry: options of a configuration's dataset, None where a build cannot read these files.
    """

    name: str
    files: int
    bytes: int
    formats: Mapping[str, int]
    rows: int | None
    rows_exact: bool
    features: tuple[Feature, ...]
    kind: Kind
    mapping: ColumnMapping
    text: TextStatistics | None
    sampled: int
    bad: Mapping[str, int]
    sample: tuple[Mapping[str, Any], ...]
    entry: Mapping[str, Any] | None

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
        """Whether the proposal is a configuration that a build can run (given a tokenizer)."""
        return any(group.entry is not None for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; keys are stable."""
        return {**asdict(self), "runnable": self.runnable}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetMetadata:
    """What a dataset holds, without a download of it.

    Attributes:
        name: as it was asked for.
        configs, splits: their names; none where there are no such parts.
        config: of which the rest is told: the one asked for, the default one, else the first.
        features: column to its type.
        roles: role, such as ``text`` or ``messages``, to the column that is taken for it.
        num_rows: None where only reading would tell; `num_rows_exact` says whether it was counted or estimated.
        bytes: as stored.
        remarks: things to know, the choice of a first config among them.
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
        """Return what an inspection found, of its largest group of files."""
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
