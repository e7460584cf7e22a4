"""Plan of a build: its units, the job of each, and the files beside their data.

A build of texts has units that tokenize (:class:`TextUnit`). A build of stored datasets
has units that mix (:class:`MixUnit`) or pack again (:class:`RepackUnit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias, cast, final

import yaml

from tokenlake.base import numbers
from tokenlake.base.markup import named_facts, one_line
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.job import (
    BackendJob,
    MixJob,
    ParentVersion,
    RepackJob,
    RowsOut,
    UnitJob,
    WarmJob,
    WorkJob,
)
from tokenlake.etl.plan.exclusions import Exclusion
from tokenlake.etl.plan.mix_forecast import MixForecast
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.etl.plan.planned_tokenizer import PlannedTokenizer
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.layout import CONFIG, Layout, tokenizer_path
from tokenlake.runtime.store.ledger import InputFileEntry
from tokenlake.runtime.store.manifest import Kind
from tokenlake.runtime.store.mixture import Level, MixtureSpec

_CONFIG_HEADER: Final = """\
# What this version was built with, every default worked out. Nothing of the machine is here, so that equal
# builds are equal bytes: the inputs are in manifest.json, the tokenizer is in tokenizer/, the configuration
# as it was written is in runs/.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Fields of every unit.

    Attributes:
        index: Place in the plan, from 0. It names the output files, and is not part of
            the unit's identity.
        source: Name of the source, or :data:`tokenlake.runtime.store.ledger.MIXED` for
            rows of several sources.
        bytes: Number of input bytes, for progress and scheduling.
        fingerprint: Identity of the unit (sha256 hex): equal fingerprints give equal
            bytes.
    """

    index: int
    source: str
    bytes: int
    fingerprint: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TextUnit(_Unit):
    """Texts of one source to tokenize.

    Attributes:
        ranges: Ranges of input files that are read, in order.
        excluded: Positions that are left out of these ranges, by file id.
        files: Number of files that the unit writes for each split; None where their
            size decides it.
    """

    ranges: Sequence[FileRange]
    excluded: Mapping[int, list[int]]
    files: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixUnit(_Unit):
    """The rows at positions ``start .. stop`` of a mixture.

    Attributes:
        start: First position.
        stop: Position after the last one.
    """

    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RepackUnit(_Unit):
    """A unit of a stored version that is packed again.

    Attributes:
        parent: Stored version.
        parent_unit: Index of the unit in the stored version.
    """

    parent: ParentVersion
    parent_unit: int


PlannedUnit: TypeAlias = TextUnit | MixUnit | RepackUnit
"""A unit of a plan."""


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """Work of a build, and everything that follows from it before a row is written.

    Attributes:
        build: Resolved configuration.
        inputs: Input files of the texts; sources in configuration order, paths sorted.
        units: Units, in the order of the dataset's rows.
        tokenizers: Tokenizer of each source of texts.
        fingerprint: Identity of the version.
        notes: Notes for the user before the build.
        left_out: Those of the notes that name splits that are not read or mixed; the
            result repeats them.
        config: Configuration as identity and the manifest see it.
        exclusions: Lists of documents that are left out.
        bad_budgets: Number of bad records in one unit after which the whole build
            cannot succeed, by source.
        parents: Stored versions whose rows are read; those whose weight is always 0 are
            left out.
        level: Kind of row of the parents.
        out: Format of the rows that are made of the parents' rows; None in a build of
            texts.
        spec: Order of the mixture; None where nothing is mixed.
        forecast: Expected size of the mixture; None where nothing is mixed.
    """

    build: ResolvedBuild
    inputs: Sequence[InputFile | InputFileEntry]
    units: tuple[PlannedUnit, ...]
    tokenizers: Mapping[str, PlannedTokenizer]
    fingerprint: str
    notes: tuple[str, ...]
    config: Mapping[str, Any]
    left_out: tuple[str, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    bad_budgets: Mapping[str, int] = field(default_factory=dict[str, int])
    parents: tuple[FoundParent, ...] = ()
    level: Level = "documents"
    out: RowsOut | None = None
    spec: MixtureSpec | None = None
    forecast: MixForecast | None = None

    @property
    def dataset(self) -> str:
        """Name of the dataset in the store."""
        return self.build.name

    @cached_property
    def store(self) -> StoreAddress:
        """Address of the store that the build writes to."""
        return address_of_build(self.build)

    @property
    def kind(self) -> Kind:
        """Kind of the version's rows."""
        # Rows that are made of stored rows have the format of these.
        if self.out is None:
            return self.build.kind
        if self.out.width is None:
            return "tokens"
        return "packed"

    @property
    def width(self) -> int:
        """Number of ids of a packed row; 0 where a row is a document."""
        if self.out is None:
            return self.build.width
        return self.out.width or 0

    @property
    def input_bytes(self) -> int:
        """Number of input bytes of all units."""
        return sum(unit.bytes for unit in self.units)

    @cached_property
    def source_bytes(self) -> dict[str, int]:
        """Input bytes of the units of each source, in plan order.

        Sources have the names that progress has.
        """
        # A source without units has none; a mixture has one name for all sources.
        bytes_by_source = {source.name: 0 for source in self.build.sources}
        for unit in self.units:
            bytes_by_source[unit.source] = (
                bytes_by_source.get(unit.source, 0) + unit.bytes
            )
        return bytes_by_source

    def source(self, name: str) -> ResolvedSource:
        """Return the source of texts with a name."""
        # Plans have few sources.
        return next(source for source in self.build.sources if source.name == name)

    def missed(self, accounts: Mapping[str, Account]) -> tuple[str, ...]:
        """Return notes on listed documents that the build did not find.

        Args:
            accounts: Account of each source of the finished build.

        Raises:
            ConfigError: A list left nothing out.
        """
        # Some notes are known before the build, others from its audit.
        notes: list[str] = []
        for exclusion in self.exclusions:
            notes.extend(exclusion.notes())
            notes.extend(exclusion.missed(accounts))
        return tuple(notes)

    @cached_property
    def tokenizer_folders(self) -> dict[str, str]:
        """Folder of each source's tokenizer below ``tokenizer/``.

        It is "" where all sources share one tokenizer, which is then where every other
        tool looks for it.
        """
        digests: dict[str, str] = {}
        for source_name, tokenizer in self.tokenizers.items():
            digests[source_name] = tokenizer.digest
        # The first letters of a hash name the folder, as names of tokenizers may not be
        # names of files.
        if len(set(digests.values())) == 1:
            return dict.fromkeys(digests, "")
        return {source_name: digest[:16] for source_name, digest in digests.items()}

    def __repr__(self) -> str:
        name = one_line(self.dataset)
        units = numbers.plural(len(self.units), "unit")
        return f"Plan({name}: {self.kind}, {units}, {numbers.size(self.input_bytes)} of input)"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        fields = {
            "kind": self.kind,
            "ids of a row": self.width or None,
            "input files": len(self.inputs),
            "input bytes": self.input_bytes,
            "units": len(self.units),
            "made of": ", ".join(parent.reference for parent in self.parents),
            "fingerprint": self.fingerprint,
            "notes": "; ".join(self.notes),
        }
        source_rows = [
            (source_name, f"{count:,}")
            for source_name, count in self.source_bytes.items()
        ]
        return named_facts(
            f"Plan of {self.dataset}", fields, ("source", "bytes of input"), source_rows
        )

    def preamble(self) -> dict[str, bytes]:
        """Return the files that workers and readers need besides the data.

        The result has their content by path below the version.
        """
        file_contents: dict[str, bytes] = {}
        # A tokenizer that sources share is written to one folder, once.
        for source, tokenizer in self.tokenizers.items():
            folder = tokenizer_path(self.tokenizer_folders[source])
            for file_name, content in tokenizer.files.files.items():
                file_contents[f"{folder}/{file_name}"] = content
        file_contents[CONFIG] = config_yaml(self.config)
        return file_contents

    def job(
        self, unit: PlannedUnit, store: StoreAddress, layout: Layout, engine: str
    ) -> WorkJob:
        """Return the self-contained description of a unit's work.

        Args:
            unit: Unit of the plan.
            store: Address of the store that its parts are written to.
            layout: Layout of the version that they belong to.
            engine: Tokenizer backend, for a unit of texts.
        """
        # 1. The fields of every job that builds a unit.
        target: dict[str, Any] = {
            "store": store,
            "dataset": layout.dataset,
            "version": layout.version,
            "unit": unit.index,
            "fingerprint": unit.fingerprint,
        }

        # 2. A unit of texts. Its source has the other fields.
        if isinstance(unit, TextUnit):
            return UnitJob(
                ranges=tuple(unit.ranges),
                excluded=unit.excluded,
                files=unit.files,
                tokenizer=self._tokenizer_key(unit.source, layout),
                engine=engine,
                **self._fields_of_sources[unit.source],
                **target,
            )

        # 3. A unit of stored rows, whose parents are in the store of the build; the
        #    parts may go to another one, as in a repair.
        out = cast("RowsOut", self.out)
        if isinstance(unit, RepackUnit):
            return RepackJob(
                parents_store=self.store,
                parent=unit.parent,
                parent_unit=unit.parent_unit,
                source=unit.source,
                out=out,
                **target,
            )
        return MixJob(
            parents_store=self.store,
            level=self.level,
            parents=tuple(parent.version for parent in self.parents),
            mixture=cast("MixtureSpec", self.spec),
            start=unit.start,
            stop=unit.stop,
            out=out,
            **target,
        )

    def backend_job(self, unit: TextUnit, layout: Layout) -> BackendJob:
        """Return the job that chooses the tokenizer backend of a unit's source."""
        # The probe reads documents from the beginning of this unit.
        return BackendJob(
            store=self.store,
            tokenizer=self._tokenizer_key(unit.source, layout),
            tokenizer_files=self.tokenizers[unit.source].facts["files"],
            source=self.source(unit.source),
            ranges=tuple(unit.ranges),
            size=self.source_bytes[unit.source],
        )

    def warm_job(self, unit: TextUnit, layout: Layout) -> WarmJob:
        """Return the job that loads everything that units of a source probably need."""
        return WarmJob(
            store=self.store,
            tokenizer=self._tokenizer_key(unit.source, layout),
            tokenizer_files=self.tokenizers[unit.source].facts["files"],
            source=self.source(unit.source),
            size=self.source_bytes[unit.source],
        )

    def _tokenizer_key(self, source: str, layout: Layout) -> str:
        """Return the key prefix of a source's tokenizer."""
        return layout.key(tokenizer_path(self.tokenizer_folders[source]))

    @cached_property
    def _fields_of_sources(self) -> dict[str, dict[str, Any]]:
        """Fields of a job that all units of a source of texts share, by source."""
        fields_of_build = {
            "pack": self.build.pack,
            "max_shard_size": self.build.max_shard_size,
            "loss_mask": self.build.loss_mask,
            "attention_mask": self.build.attention_mask,
            "kept": self.build.kept,
        }
        # Computed once, because a plan may have very many units.
        fields: dict[str, dict[str, Any]] = {}
        for source_name, tokenizer in self.tokenizers.items():
            fields[source_name] = {
                **fields_of_build,
                "source": self.source(source_name),
                "tokenizer_files": tokenizer.facts["files"],
                "eos_id": tokenizer.eos_id,
                "pad_id": tokenizer.pad_id,
                "append_eos": tokenizer.append_eos,
                "bad_budget": self.bad_budgets.get(source_name, 0),
            }
        return fields


def config_yaml(config: Mapping[str, Any]) -> bytes:
    """Return the content of ``config.yaml``, a configuration as identity sees it."""
    yaml_text = yaml.safe_dump(dict(config), sort_keys=True, allow_unicode=True)
    return (_CONFIG_HEADER + yaml_text).encode()
