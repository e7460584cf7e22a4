"""The plan of a build, whatever it is made of: units of work, what a worker is told about each, and what is written
beside their data.

A build of texts has units that tokenize (:class:`TextUnit`); a build of stored datasets has units that mix
(:class:`MixUnit`) or pack again (:class:`RepackUnit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias, final

import yaml

from tokenlake.base import numbers
from tokenlake.base.markup import named_facts, one_line
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.job import EngineJob, MixJob, ParentVersion, RepackJob, RowsOut, UnitJob, WarmJob, WorkJob
from tokenlake.etl.plan.exclusions import Exclusion
from tokenlake.etl.plan.mixture import MixForecast
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
    """What every unit of work has.

    Attributes:
        index: place in the plan, from 0; names the output files, is not part of the unit's identity.
        source: name of the source, or :data:`tokenlake.runtime.store.ledger.MIXED` where rows are of several.
        bytes: input bytes, for progress and scheduling.
        fingerprint: equal fingerprints give equal bytes (sha256 hex).
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
        ranges: the parts of input files to read, in order.
        excluded: file id to the positions that are left out of these ranges.
        files: exactly so many files for each split; None: as many as their size makes.
    """

    ranges: Sequence[FileRange]
    excluded: Mapping[int, list[int]]
    files: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixUnit(_Unit):
    """The rows at positions ``start .. stop`` of a mixture."""

    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RepackUnit(_Unit):
    """A unit of a stored version, `parent_unit` of `parent`, that is packed again."""

    parent: ParentVersion
    parent_unit: int


PlannedUnit: TypeAlias = TextUnit | MixUnit | RepackUnit


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a build will do.

    Attributes:
        build: the resolved configuration.
        inputs: the input files of the texts, sources in configuration order, paths sorted.
        units: the work, in the order of the dataset's rows.
        tokenizers: of each source of texts.
        fingerprint: identity of the version.
        notes: what a user should know before running.
        left_out: those of the notes that say which splits are not read or mixed; the result repeats them.
        config: what identity sees of the configuration.
        exclusions: the lists of documents to leave out.
        bad_budgets: source to the bad records in one unit past which the whole build cannot succeed.
        parents: the stored versions that rows are taken from; those whose weight is always 0 are left out.
        level: what the parents' rows are.
        out: what the rows made of the parents' are; None in a build of texts.
        spec, forecast: the order of a mixture, and what it comes to; None where nothing is mixed.
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
        """Name in the store."""
        return self.build.name

    @cached_property
    def store(self) -> StoreAddress:
        """Where the build writes."""
        return address_of_build(self.build)

    @property
    def kind(self) -> Kind:
        """What the rows of the version are."""
        if self.out is None:
            return self.build.kind
        return "tokens" if self.out.width is None else "packed"

    @property
    def width(self) -> int:
        """Ids of a packed row; 0 where a row is a document."""
        return self.build.width if self.out is None else self.out.width or 0

    @property
    def input_bytes(self) -> int:
        return sum(unit.bytes for unit in self.units)

    @cached_property
    def source_bytes(self) -> dict[str, int]:
        """What progress is told by to bytes of its units, in plan order."""
        sums = {source.name: 0 for source in self.build.sources}
        for unit in self.units:
            sums[unit.source] = sums.get(unit.source, 0) + unit.bytes
        return sums

    def source(self, name: str) -> ResolvedSource:
        return next(source for source in self.build.sources if source.name == name)

    def missed(self, accounts: Mapping[str, Account]) -> tuple[str, ...]:
        """What a finished build says of documents that were to be left out and were not there.

        Raises:
            ConfigError: a list left nothing out.
        """
        return tuple(line for each in self.exclusions for line in [*each.notes(), *each.missed(accounts)])

    @cached_property
    def tokenizer_folders(self) -> dict[str, str]:
        """Source to the folder of its tokenizer below ``tokenizer/``.

        It is "" where all sources share one: a single tokenizer lies where every other tool looks for it.
        """
        digests = {name: planned.digest for name, planned in self.tokenizers.items()}
        alone = len(set(digests.values())) == 1
        return {name: "" if alone else digest[:16] for name, digest in digests.items()}

    def __repr__(self) -> str:
        name, units = one_line(self.dataset), numbers.plural(len(self.units), "unit")
        return f"Plan({name}: {self.kind}, {units}, {numbers.size(self.input_bytes)} of input)"

    def _repr_html_(self) -> str:
        facts = {
            "kind": self.kind,
            "ids of a row": self.width or None,
            "input files": len(self.inputs),
            "input bytes": self.input_bytes,
            "units": len(self.units),
            "made of": ", ".join(parent.reference for parent in self.parents),
            "fingerprint": self.fingerprint,
            "notes": "; ".join(self.notes),
        }
        rows = [(name, f"{many:,}") for name, many in self.source_bytes.items()]
        return named_facts(f"Plan of {self.dataset}", facts, ("source", "bytes of input"), rows)

    def preamble(self) -> dict[str, bytes]:
        """Return the files that workers and readers need besides the data: path below the version -> content."""
        found = {
            f"{tokenizer_path(self.tokenizer_folders[source])}/{name}": data
            for source, planned in self.tokenizers.items()
            for name, data in planned.files.files.items()
        }
        return found | {CONFIG: config_yaml(self.config)}

    def job(self, unit: PlannedUnit, store: StoreAddress, layout: Layout, engine: str) -> WorkJob:
        """Return the self-contained description of a unit's work.

        Args:
            store, layout: where its parts go.
            engine: the tokenizer engine, for a unit of texts.
        """
        target: dict[str, Any] = {"store": store, "dataset": layout.dataset, "version": layout.version}
        target |= {"unit": unit.index, "fingerprint": unit.fingerprint}
        if isinstance(unit, TextUnit):
            own = {"ranges": tuple(unit.ranges), "excluded": unit.excluded, "files": unit.files}
            where = layout.key(tokenizer_path(self.tokenizer_folders[unit.source]))
            return UnitJob(tokenizer=where, engine=engine, **own, **self._told[unit.source], **target)
        target |= {"parents_store": self.store, "out": self.out}
        if isinstance(unit, RepackUnit):
            parent = {"parent": unit.parent, "parent_unit": unit.parent_unit, "source": unit.source}
            return RepackJob(**parent, **target)
        target |= {"parents": tuple(parent.version for parent in self.parents), "mixture": self.spec}
        return MixJob(level=self.level, start=unit.start, stop=unit.stop, **target)

    def engine_job(self, unit: TextUnit, layout: Layout) -> EngineJob:
        """Return the job that chooses the engine for a unit's source."""
        return EngineJob(
            store=self.store,
            tokenizer=layout.key(tokenizer_path(self.tokenizer_folders[unit.source])),
            tokenizer_files=self.tokenizers[unit.source].facts["files"],
            source=self.source(unit.source),
            ranges=tuple(unit.ranges),
            size=self.source_bytes[unit.source],
        )

    def warm_job(self, unit: TextUnit, layout: Layout) -> WarmJob:
        """Return the job that loads what a unit's source is likely to need."""
        return WarmJob(
            store=self.store,
            tokenizer=layout.key(tokenizer_path(self.tokenizer_folders[unit.source])),
            tokenizer_files=self.tokenizers[unit.source].facts["files"],
            source=self.source(unit.source),
            size=self.source_bytes[unit.source],
        )

    @cached_property
    def _told(self) -> dict[str, dict[str, Any]]:
        """Source of texts to what all its units are told."""
        of_build = ("pack", "max_shard_size", "loss_mask", "attention_mask", "kept")
        same = {name: getattr(self.build, name) for name in of_build}
        return {
            name: {
                **same,
                "source": self.source(name),
                "tokenizer_files": planned.facts["files"],
                "eos_id": planned.eos_id,
                "pad_id": planned.pad_id,
                "append_eos": planned.append_eos,
                "bad_budget": self.bad_budgets.get(name, 0),
            }
            for name, planned in self.tokenizers.items()
        }


def config_yaml(config: Mapping[str, Any]) -> bytes:
    """Return ``config.yaml``: what identity sees of a configuration."""
    text = yaml.safe_dump(dict(config), sort_keys=True, allow_unicode=True)
    return (_CONFIG_HEADER + text).encode()
