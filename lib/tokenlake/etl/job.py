"""Jobs: what a worker process needs to know, as JSON.

A job names the store and says everything else by value, so that the same job runs in a local worker
process or on another machine.

Jobs of a build from stored datasets, as JSON, like those of :mod:`tokenlake.etl.job`.

The store of a build as workers open it: wherever they run, and with references to credentials left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from tokenlake.column_types import ColumnType
from tokenlake.config.resolved import ResolvedBuild, ResolvedMix, ResolvedPack, ResolvedSource
from tokenlake.etl.mixture import MixtureSpec
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.store.address import StoreAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitJob:
    """Build one unit.

    Attributes:
        store, dataset, version: where the parts go.
        unit, fingerprint: the unit's index and identity.
        source: the resolved source, its tokenizer included.
        ranges: what to read.
        pack: how to pack; None writes one row per document (`tokens`).
        tokenizer: key prefix of the tokenizer's files in the store.
        tokenizer_files: their names and sha256 (hex).
        engine: the engine that the gate chose.
        eos_id, pad_id: resolved ids.
        append_eos: whether packing adds EOS after each document.
        max_shard_size: bytes after which a part is closed.
        excluded: file id to the positions to leave out.
        loss_mask: whether rows say which of their tokens bear loss.
        attention_mask: whether unpacked rows say which of their ids are not padding.
        kept: (name, type) of the dataset's columns of kept fields, see :mod:`tokenlake.column_types`.
        files: write exactly so many files for each split, whatever their size; None: as `max_shard_size` says.
        bad_budget: bad records after which the whole build cannot succeed any more.
    """

    store: StoreAddress
    dataset: str
    version: int
    unit: int
    fingerprint: str
    source: ResolvedSource
    ranges: tuple[FileRange, ...]
    pack: ResolvedPack | None
    tokenizer: str
    tokenizer_files: Mapping[str, str]
    engine: str
    eos_id: int
    pad_id: int
    append_eos: bool
    max_shard_size: int
    excluded: dict[int, list[int]]
    bad_budget: int
    loss_mask: bool = False
    attention_mask: bool = False
    kept: tuple[tuple[str, ColumnType], ...] = ()
    files: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"op": "unit", **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> UnitJob:
        fields = {key: value for key, value in data.items() if key != "op"}
        fields["store"] = StoreAddress.from_json(data["store"])
        fields["source"] = ResolvedSource.from_json(data["source"])
        fields["ranges"] = tuple(range_from_json(part) for part in data["ranges"])
        fields["pack"] = ResolvedPack(**data["pack"]) if data["pack"] is not None else None
        fields["kept"] = tuple((name, kind) for name, kind in data["kept"])
        fields["excluded"] = {int(file): positions for file, positions in data["excluded"].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """Choose the engine for a source: static checks, then a probe on its first documents."""

    store: StoreAddress
    tokenizer: str
    tokenizer_files: Mapping[str, str]
    source: ResolvedSource
    ranges: tuple[FileRange, ...]

    def to_json(self) -> dict[str, Any]:
        return {"op": "engine", **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EngineJob:
        return cls(
            store=StoreAddress.from_json(data["store"]),
            tokenizer=data["tokenizer"],
            tokenizer_files=data["tokenizer_files"],
            source=ResolvedSource.from_json(data["source"]),
            ranges=tuple(range_from_json(part) for part in data["ranges"]),
        )


def range_from_json(data: dict[str, Any]) -> FileRange:
    """Rebuild what :func:`dataclasses.asdict` and JSON made of a range."""
    fields: dict[str, Any] = {**data["file"], "stat": tuple(data["file"]["stat"])}
    return FileRange(
        file=InputFile(**fields),
        start=data["start"],
        stop=data["stop"],
        weight=data["weight"],
        rows=data["rows"],
    )


Level = Literal["documents", "sequences"]
"""What the rows of a mixture are: documents, which are packed after they are mixed or stay rows, or packed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentVersion:
    """A committed version that rows are taken from.

    Attributes:
        name: of the source in the configuration: what weights and accounts refer to.
        dataset, version: of the parent.
        sha256: of its manifest; a worker that finds another refuses.
        split: the split that is mixed.
    """

    name: str
    dataset: str
    version: int
    sha256: str
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOut:
    """What the rows of the new version are.

    Attributes:
        pack: how to pack documents; None: rows stay what they are (`tokens` or `packed`).
        seq_length: ids of a packed row that is passed on or made; None for `tokens`.
        prefix, suffix: what the parents' post-processor puts around a document, as far as their configuration has it
            add that: a row of `tokens` begins and ends with these already.
        eos_id, pad_id: resolved ids.
        append_eos: whether packing adds EOS after a document that does not end with one.
        whole: names of parents whose documents come rendered, with what belongs around them.
        loss_mask: whether rows say which of their ids bear loss.
        max_shard_size: bytes after which a part is closed.
    """

    pack: ResolvedPack | None
    seq_length: int | None
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    eos_id: int
    pad_id: int
    append_eos: bool
    whole: tuple[str, ...]
    loss_mask: bool
    max_shard_size: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        pack = data["pack"]
        fields: dict[str, Any] = {
            **data,
            "pack": None if pack is None else ResolvedPack(**pack),
            **{name: tuple(data[name]) for name in ("prefix", "suffix", "whole")},
        }
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixJob:
    """Write the rows at positions ``start .. stop`` of a mixture.

    Attributes:
        store, dataset, version: where the parts go.
        parents_store: where the parents are; normally the same store.
        unit, fingerprint: the unit's index and identity.
        level: what the rows are.
        parents: in the order of the mixture's names.
        mixture: the order.
        start, stop: positions of the mixture.
        out: what the new rows are.
    """

    store: StoreAddress
    parents_store: StoreAddress
    dataset: str
    version: int
    unit: int
    fingerprint: str
    level: Level
    parents: tuple[ParentVersion, ...]
    mixture: MixtureSpec
    start: int
    stop: int
    out: RowsOut

    def to_json(self) -> dict[str, Any]:
        return {"op": "mix", **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        fields: dict[str, Any] = {key: value for key, value in data.items() if key != "op"}
        _open_addresses(fields)
        fields["parents"] = tuple(ParentVersion(**parent) for parent in data["parents"])
        fields["mixture"] = MixtureSpec.from_json(data["mixture"])
        fields["out"] = RowsOut.from_json(data["out"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackJob:
    """Pack the documents of one unit of a parent again, in the order in which they are stored, split by split.

    A unit of the parent becomes a unit, so that greedy packing of stored tokens gives the very rows that packing the
    text at once would have given.

    Attributes:
        parents_store: where the parent is; normally the store that the parts go to.
        parent: its `split` says nothing here: every split is packed by itself.
        parent_unit: index of the unit in the parent.
        source: the source of the parent's unit, which becomes this unit's.
        out: what the new rows are; `out.pack` is set.
    """

    store: StoreAddress
    parents_store: StoreAddress
    dataset: str
    version: int
    unit: int
    fingerprint: str
    parent: ParentVersion
    parent_unit: int
    source: str
    out: RowsOut

    def to_json(self) -> dict[str, Any]:
        return {"op": "repack", **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        fields: dict[str, Any] = {key: value for key, value in data.items() if key != "op"}
        _open_addresses(fields)
        fields["parent"] = ParentVersion(**data["parent"])
        fields["out"] = RowsOut.from_json(data["out"])
        return cls(**fields)


def _open_addresses(fields: dict[str, Any]) -> None:
    for name in ("store", "parents_store"):
        fields[name] = StoreAddress.from_json(fields[name])


def store_address(build: ResolvedBuild | ResolvedMix) -> StoreAddress:
    """Return where a build writes; a path becomes one that does not depend on the current folder."""
    where = build.store
    if where and "://" not in where:
        where = str(Path(where).expanduser().absolute())
    return StoreAddress(where, build.store_options)
