"""Jobs: what a worker process needs to know, as JSON.

A job names the store and says everything else by value, so that the same job runs in a local worker
process or on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tokenlake.columntypes import ColumnType
from tokenlake.config.resolved import ResolvedPack, ResolvedSource
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.ranges import FileRange
from tokenlake.storage.address import StoreAddress


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
        kept: (name, type) of the dataset's columns of kept fields, see :mod:`tokenlake.columntypes`.
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
