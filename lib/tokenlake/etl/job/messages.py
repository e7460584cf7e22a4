"""Messages to a worker process: its jobs, and what it should load or know before one.

A worker answers every :data:`Job`. It answers neither :class:`SecretBlocks` nor
:class:`WarmJob`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tokenlake.base.columns import ColumnType
from tokenlake.config.resolved import ResolvedPack, ResolvedSource, Signing
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.mixture import Level, MixtureSpec

REFERENCE: Final = "tokenizers"
"""The tokenizer backend whose ids are right by definition."""

NO_BACKEND: Final = "none"
"""Name of the tokenizer backend in the record of a unit that tokenizes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentVersion:
    """A committed version whose rows are read.

    Attributes:
        name: Name of the source in the configuration, which weights and audits use.
        dataset: Name of the dataset.
        version: Number of the version.
        sha256: Hash of its manifest (hex). A worker refuses a version with another
            manifest.
        split: Name of the split that is mixed.
    """

    name: str
    dataset: str
    version: int
    sha256: str
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOut:
    """Format of the rows that a build of stored versions writes.

    Attributes:
        pack: Packing of documents; None leaves rows as they are stored (`tokens` or
            `packed`).
        width: Number of ids of a packed row; None for `tokens`.
        prefix: Ids that the tokenizer's post-processor puts before a document, where
            the parents' configuration has it add them: a row of `tokens` begins with
            them already.
        suffix: Ids that it puts after a document, likewise.
        eos_id: Id of EOS.
        pad_id: Id of padding.
        append_eos: Whether packing adds EOS after a document that does not end with
            one.
        whole: Names of the parents whose documents are rendered with all special tokens
            that belong around them.
        loss_mask: Whether rows have a mask of the ids that count toward the loss.
        max_shard_size: Number of bytes after which a part is closed.
        tokenizer: The sha256 (hex) of the ``tokenizer.json`` of all parents; None where
            they have none.
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
    """Values of secret blocks for the jobs that follow.

    A worker does not answer this message.

    Attributes:
        values: Value of each block, by its name.
    """

    values: Mapping[str, str]
    op: Literal["blocks"] = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmJob:
    """Load and import everything that the units of a source probably need.

    The tokenizer backend is not chosen yet. The loaded one is used if the gate chooses
    it. A worker does not answer this message.

    Attributes:
        store: Address of the store that has the tokenizer.
        tokenizer: Key prefix of the tokenizer's files.
        tokenizer_files: The sha256 (hex) of each file of the tokenizer, by its name.
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
class BackendJob:
    """Choose the tokenizer backend of a source.

    Static checks come first, then a probe on the first documents.

    Attributes:
        store: Address of the store that has the tokenizer.
        tokenizer: Key prefix of the tokenizer's files.
        tokenizer_files: The sha256 (hex) of each file of the tokenizer, by its name.
        source: Resolved source of the units.
        ranges: Ranges of input files whose first documents are the probe.
        size: Bytes of input that the source has in all units.
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
    """Fields of every job that builds a unit.

    Attributes:
        store: Address of the store that the parts are written to.
        dataset: Name of the dataset.
        version: Number of the version.
        unit: Index of the unit.
        fingerprint: Identity of the unit.
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
        source: Resolved source, its tokenizer included.
        ranges: Ranges of input files that are read.
        pack: Packing of documents; None writes one row per document (`tokens`).
        tokenizer: Key prefix of the tokenizer's files in the store.
        tokenizer_files: The sha256 (hex) of each file of the tokenizer, by its name.
        engine: Name of the tokenizer backend that the gate chose.
        eos_id: Id of EOS.
        pad_id: Id of padding.
        append_eos: Whether packing adds EOS after each document.
        max_shard_size: Number of bytes after which a part is closed.
        excluded: Positions of the records that are left out, by file id.
        bad_budget: Number of bad records after which the whole build cannot succeed any
            more.
        loss_mask: Whether rows have a mask of the tokens that count toward the loss.
        attention_mask: Whether unpacked rows have a mask of the ids that are not
            padding.
        kept: Name and type of each column of kept fields of the dataset, see
            :mod:`tokenlake.runtime.schema`.
        files: Number of files that are written for each split, whatever their size;
            None closes a file after `max_shard_size`.
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
        """The sha256 (hex) of ``tokenizer.json``, None for a tokenizer without it."""
        return self.tokenizer_files.get("tokenizer.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixJob(_Target):
    """Write the rows at positions ``start .. stop`` of a mixture.

    Attributes:
        parents_store: Address of the store of the parents; normally the store that the
            parts are written to.
        level: Kind of row that is mixed.
        parents: Versions that are mixed, in the order of the mixture's names.
        mixture: Order of the mixture.
        start: First position of the mixture.
        stop: Position after the last one.
        out: Format of the new rows.
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
    """Pack the documents of one unit of a parent again, in their stored order.

    They are packed split by split. A unit of the parent becomes a unit. Greedy packing
    of stored tokens therefore gives the same rows as packing the text at once would
    have given.

    Attributes:
        parents_store: Address of the store of the parent; normally the store that the
            parts are written to.
        parent: Version whose documents are packed. Every split is packed by itself;
            where `split` names a held-out split, only that one is packed.
        parent_unit: Index of the unit in the parent.
        source: Name of the source of the parent's unit, which becomes the source of
            this unit.
        out: Format of the new rows; `out.pack` is set.
    """

    parents_store: StoreAddress
    parent: ParentVersion
    parent_unit: int
    source: str
    out: RowsOut
    op: Literal["repack"] = "repack"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignJob:
    """Make the signatures of one unit's documents.

    See :mod:`tokenlake.etl.clean.signatures`.

    Attributes:
        store: Address of the store that they are written to.
        fingerprint: Identity of the unit's inputs and of the signing; it names the
            file.
        source: Resolved source; its tokenizer is not used.
        ranges: Ranges of input files that are read.
        signing: Parameters of the signatures.
    """

    store: StoreAddress
    fingerprint: str
    source: ResolvedSource
    ranges: tuple[FileRange, ...]
    signing: Signing
    op: Literal["sign"] = "sign"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightJob:
    """Check that the machine of a worker would write the bytes of a build.

    The answer is empty, or an error.

    Attributes:
        store: Address of the store, in which the claim of the build must be found.
        dataset: Name of the dataset.
        version: Number of the version.
        versions: Name and version of each package that decides bytes.
        probe: Job that chose the backend of a source of texts; it reads the tokenizer
            and the first records.
        engine: Name of the backend that it chose.
    """

    store: StoreAddress
    dataset: str
    version: int
    versions: Mapping[str, str]
    probe: BackendJob | None = None
    engine: str = NO_BACKEND
    op: Literal["preflight"] = "preflight"


WorkJob: TypeAlias = UnitJob | MixJob | RepackJob
"""A job that builds a unit."""

Job: TypeAlias = WorkJob | SignJob | BackendJob | PreflightJob
"""A job that a worker answers."""
