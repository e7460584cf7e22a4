"""Jobs and answers: what a worker process is told and what it says, one JSON line each.

A user's function that never returns, or a tokenizer's regular expression that never ends, cannot be stopped from
inside. So a worker says what it does before it begins (:func:`begin`), and the pool ends a silent worker and names the
last report.

A job names the stores and says everything else by value, so that the same job gives the same bytes in a worker
process of this machine and in one of another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from tokenlake._version import __version__
from tokenlake.base.columns import ColumnType
from tokenlake.base.typed_json import converted, decoder
from tokenlake.config.resolved import ResolvedPack, ResolvedSource, Signing
from tokenlake.errors import IntegrityError, WorkerError
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.mixture import Level, MixtureSpec

if TYPE_CHECKING:  # a worker that mixes nothing need not have it
    from tokenlake.base.arrays import Int64
    from tokenlake.runtime.mixing.streams import MixtureStream

REFERENCE: Final = "tokenizers"
"""The tokenizer engine whose ids are right by definition."""

NO_ENGINE: Final = "none"
"""What a record says of the tokenizer engine where nothing was tokenized."""


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
    """What the rows of a version made of stored versions are.

    Attributes:
        pack: how to pack documents; None: rows stay what they are (`tokens` or `packed`).
        width: ids of a packed row that is passed on or made; None for `tokens`.
        prefix, suffix: what the parents' post-processor puts around a document, as far as their configuration has it
            add that: a row of `tokens` begins and ends with these already.
        eos_id, pad_id: resolved ids.
        append_eos: whether packing adds EOS after a document that does not end with one.
        whole: names of parents whose documents come rendered, with what belongs around them.
        loss_mask: whether rows say which of their ids bear loss.
        max_shard_size: bytes after which a part is closed.
        tokenizer: sha256 (hex) of the ``tokenizer.json`` of all parents; None where they have none.
    """

    pack: ResolvedPack | None
    width: int | None
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    eos_id: int
    pad_id: int
    append_eos: bool
    whole: tuple[str, ...]
    loss_mask: bool
    max_shard_size: int
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretBlocks:
    """Values of secret blocks for the jobs that follow; not answered."""

    values: Mapping[str, str]
    op: Literal["blocks"] = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmJob:
    """Load what the units of a source are likely to need, and import it; not answered.

    The engine is not chosen yet. What is loaded is used if it is the one that the gate chooses.

    Attributes:
        store: Address of the store that has the tokenizer.
        tokenizer: Key prefix of the tokenizer's files.
        tokenizer_files: Their names and sha256 (hex).
        source: Resolved source of the units.
        size: Bytes of input that the source has in all units.
    """

    store: StoreAddress
    tokenizer: str
    tokenizer_files: Mapping[str, str]
    source: ResolvedSource
    size: int
    op: Literal["warm"] = "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """Choose the engine for a source: static checks, then a probe on its first documents.

    Attributes:
        size: bytes of input that the source has in all units.
    """

    store: StoreAddress
    tokenizer: str
    tokenizer_files: Mapping[str, str]
    source: ResolvedSource
    ranges: tuple[FileRange, ...]
    size: int
    op: Literal["engine"] = "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What all jobs that build a unit say.

    Attributes:
        store, dataset, version: where the parts go.
        unit, fingerprint: the unit's index and identity.
    """

    store: StoreAddress
    dataset: str
    version: int
    unit: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitJob(_Target):
    """Build one unit of texts.

    Attributes:
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
        bad_budget: bad records after which the whole build cannot succeed any more.
        loss_mask: whether rows say which of their tokens bear loss.
        attention_mask: whether unpacked rows say which of their ids are not padding.
        kept: (name, type) of the dataset's columns of kept fields, see :mod:`tokenlake.runtime.schema`.
        files: write exactly so many files for each split, whatever their size; None: as `max_shard_size` says.
    """

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
    excluded: Mapping[int, list[int]]
    bad_budget: int
    loss_mask: bool = False
    attention_mask: bool = False
    kept: tuple[tuple[str, ColumnType], ...] = ()
    files: int | None = None
    op: Literal["unit"] = "unit"

    @property
    def tokenizer_json(self) -> str | None:
        """The sha256 (hex) of ``tokenizer.json``; None where there is none."""
        return self.tokenizer_files.get("tokenizer.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixJob(_Target):
    """Write the rows at positions ``start .. stop`` of a mixture.

    Attributes:
        parents_store: where the parents are; normally the store that the parts go to.
        level: what the rows are.
        parents: in the order of the mixture's names.
        mixture: the order.
        start, stop: positions of the mixture.
        out: what the new rows are.
    """

    parents_store: StoreAddress
    level: Level
    parents: tuple[ParentVersion, ...]
    mixture: MixtureSpec
    start: int
    stop: int
    out: RowsOut
    op: Literal["mix"] = "mix"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackJob(_Target):
    """Pack the documents of one unit of a parent again, in the order in which they are stored, split by split.

    A unit of the parent becomes a unit, so that greedy packing of stored tokens gives the very rows that packing the
    text at once would have given.

    Attributes:
        parents_store: where the parent is; normally the store that the parts go to.
        parent: every split is packed by itself; where its `split` is one that is held out, that one alone is.
        parent_unit: index of the unit in the parent.
        source: the source of the parent's unit, which becomes this unit's.
        out: what the new rows are; `out.pack` is set.
    """

    parents_store: StoreAddress
    parent: ParentVersion
    parent_unit: int
    source: str
    out: RowsOut
    op: Literal["repack"] = "repack"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignJob:
    """Make the signatures of one unit's documents, see :mod:`tokenlake.etl.clean.signatures`.

    Attributes:
        store: where they go.
        fingerprint: of the unit's inputs and of what is made of them; names the file.
        source: the resolved source; no tokenizer is looked at.
        ranges: what to read.
        signing: what is made.
    """

    store: StoreAddress
    fingerprint: str
    source: ResolvedSource
    ranges: tuple[FileRange, ...]
    signing: Signing
    op: Literal["sign"] = "sign"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightJob:
    """See whether a worker's machine would make the bytes of a build; the answer says nothing, or is an error.

    Attributes:
        store, dataset, version: of the build, whose claim must be found there.
        versions: name to version of what decides bytes.
        probe: the job that chose the engine of a source of texts; it reads the tokenizer and the first records.
        engine: what it chose.
    """

    store: StoreAddress
    dataset: str
    version: int
    versions: Mapping[str, str]
    probe: EngineJob | None = None
    engine: str = NO_ENGINE
    op: Literal["preflight"] = "preflight"


WorkJob: TypeAlias = UnitJob | MixJob | RepackJob
"""Builds a unit."""

Job: TypeAlias = WorkJob | SignJob | EngineJob | PreflightJob


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """A line of a worker: any number with `progress`, then one with `rss` and either `result` or `error`.

    Attributes:
        progress: what more is done; any line may say it.
        result: what the job gives, as JSON.
        error: as :func:`tokenlake.errors.to_json` makes it.
        rss: resident bytes of the worker.
    """

    progress: dict[str, int] | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    rss: int = 0


_KINDS: Final[dict[str, Any]] = {
    "unit": UnitJob,
    "mix": MixJob,
    "repack": RepackJob,
    "engine": EngineJob,
    "preflight": PreflightJob,
    "sign": SignJob,
    "blocks": SecretBlocks,
    "warm": WarmJob,
}


def to_line(message: Job | SecretBlocks | WarmJob | WorkerAnswer) -> bytes:
    """Return a job or an answer as a line of JSON."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except (UnicodeEncodeError, OverflowError):
        # Python's own JSON, which escapes what is no UTF-8: the name of a file may have such bytes.
        return json.dumps(msgspec.to_builtins(message, str_keys=True)).encode() + b"\n"


class _Kind(msgspec.Struct):
    """What a line says first of all: which job it is."""

    op: str


def job_of(line: bytes) -> Job | SecretBlocks | WarmJob:
    """Return the job that a line holds."""
    try:
        return decoder(_kind(decoder(_Kind).decode(line).op)).decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        data = json.loads(line)
        return converted(data, _kind(data["op"]), str_keys=True)


def _kind(op: str) -> Any:
    if (kind := _KINDS.get(op)) is None:
        raise WorkerError(f"unknown job {op!r}; expected one of {', '.join(_KINDS)}")
    return kind


def answer_of(line: bytes) -> WorkerAnswer:
    """Return the answer that a line holds."""
    try:
        return decoder(WorkerAnswer).decode(line)
    except msgspec.DecodeError:
        return converted(json.loads(line), WorkerAnswer)


def open_stream(spec: MixtureSpec, group_rows: Mapping[str, Int64]) -> MixtureStream:
    """Return the stream of a mixture.

    Args:
        group_rows: source to the rows of each of its row groups, int64[G].

    Raises:
        IntegrityError: a source has other rows than the spec says.
    """
    from tokenlake.runtime.mixing.caps import shortened
    from tokenlake.runtime.mixing.streams import MixtureStream, source_order
    from tokenlake.runtime.store.draws import open_mixture

    for name, rows in spec.lengths.items():
        if rows != (got := int(group_rows[name].sum())):
            raise IntegrityError(
                f"source {name!r} has {got} rows; expected {rows}, with which it was planned"
            )
    mixture = open_mixture(spec)
    kept, seed, lanes = spec.order.kept, spec.order.seed, spec.order.lanes
    used = {name: shortened(name, group_rows[name], kept.get(name), seed=seed) for name in mixture.names}
    orders = [source_order(name, rows, lanes=lanes, seed=seed) for name, rows in used.items()]
    return MixtureStream(mixture, orders)


Progress: TypeAlias = Callable[[dict[str, Any]], None]
"""Told what more of a job is done: bytes, documents, tokens; at its end, the times of its steps."""

_LISTENERS: Final[list[Callable[[str], None]]] = []
_TOLD: Final[list[str]] = ["beginning a job"]


def listen(listener: Callable[[str], None]) -> None:
    """Have `listener` told of everything from now on, in place of any other."""
    _LISTENERS[:] = [listener]


def begin(what: str, file: InputFile, positions: Sequence[int] | Any = ()) -> None:
    """Tell that something is about to be done with a file, or with the records at these positions of it."""
    if _LISTENERS:
        where = f", records from {int(positions[0])} to {int(positions[-1])}" if len(positions) else ""
        _TOLD[:] = [f"{what} {file.source}: {file.path}{where}"]
    for listener in _LISTENERS:
        listener(*_TOLD)


def last_told() -> str:
    """Return what was told last."""
    return _TOLD[0]


@cache
def produced_by(engine: str | None = None) -> dict[str, str]:
    """Name to version of the writer and, where one is given, of the tokenizer engine."""
    names = ["pyarrow"]
    if engine == "words":
        names.append("tokenizers")  # where its ids and character classes come from
    elif engine and engine != "segments":  # the segment cache is the writer's own code
        names.append(engine)
    return {"tokenlake": __version__} | {name: _version(name) for name in names}


def other_versions(wanted: Mapping[str, str]) -> list[str]:
    """Return what this process has other versions of than those, for people; it would make other bytes."""
    here = {name: _version(name) for name in wanted} | produced_by()
    return [
        f"{name} {here[name]} (the plan has {version})"
        for name, version in sorted(wanted.items())
        if here[name] != version
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
