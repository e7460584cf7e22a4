"""The plan of a build, whatever it is made of: units of work, what a worker is told about each, and what is written
beside their data.

A build of texts has units that tokenize (:class:`TextUnit`); a build of stored datasets has units that mix
(:class:`MixUnit`) or pack again (:class:`RepackUnit`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, TypeAlias, final

import xxhash
import yaml

from tokenlake import numbers
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl import job as jobs
from tokenlake.etl.plan.exclusions import Exclusion
from tokenlake.etl.plan.mixture import MixForecast
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.etl.plan.source import PlannedTokenizer
from tokenlake.markup import named_facts, one_line
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.sources.splits import split_file
from tokenlake.store.address import StoreAddress, address_of_build
from tokenlake.store.layout import CONFIG, Layout, tokenizer_path
from tokenlake.store.ledger import Account, InputFileEntry
from tokenlake.store.manifest import Kind
from tokenlake.store.mixture import Level, MixtureSpec

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
        source: name of the source, or :data:`tokenlake.store.ledger.MIXED` where rows are of several.
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

    parent: jobs.ParentVersion
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
    out: jobs.RowsOut | None = None
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

    def job(self, unit: PlannedUnit, store: StoreAddress, layout: Layout, engine: str) -> jobs.WorkJob:
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
            return jobs.UnitJob(tokenizer=where, engine=engine, **own, **self._told[unit.source], **target)
        target |= {"parents_store": self.store, "out": self.out}
        if isinstance(unit, RepackUnit):
            parent = {"parent": unit.parent, "parent_unit": unit.parent_unit, "source": unit.source}
            return jobs.RepackJob(**parent, **target)
        target |= {"parents": tuple(parent.version for parent in self.parents), "mixture": self.spec}
        return jobs.MixJob(level=self.level, start=unit.start, stop=unit.stop, **target)

    def engine_job(self, unit: TextUnit, layout: Layout) -> jobs.EngineJob:
        """Return the job that chooses the engine for a unit's source."""
        return jobs.EngineJob(
            store=self.store,
            tokenizer=layout.key(tokenizer_path(self.tokenizer_folders[unit.source])),
            tokenizer_files=self.tokenizers[unit.source].facts["files"],
            source=self.source(unit.source),
            ranges=tuple(unit.ranges),
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


# Inputs to work units: a fixed amount of input bytes each, whatever the total and the workers.
#
# Big files are cut into ranges and each range is a unit. Small files are grouped in path order; a group closes when
# it is full, or when the hash of the last path says so. The second rule keeps groups in step: after a file is added,
# removed or renamed, only the groups up to the next hash boundary change. To open a file counts like reading a few
# KiB of it, or a hundred thousand tiny files would be one unit for one worker.
#
# `num_shards`: exactly so many files, cut where the input can be cut, dealt where it cannot. The ranges of a source
# are laid end to end like a rope, to be cut into N pieces of equal weight. Through lines the rope can be cut
# anywhere; row groups, record batches, and files that are read from their beginning are knots. A cut that falls on a
# knot moves to the nearer end of it. Where several cuts come to lie on one place only one is made, and whoever reads
# the knot that was in the way writes one file more for each that was not: it deals its documents out.

#: Hash boundaries come about every half unit, so that most groups close by hash and not by size.
_BOUNDARIES_PER_UNIT: Final = 2

#: So many files at most make a unit, however small they are.
_FILES_PER_UNIT: Final = 4096

#: That a unit writes at a time, all splits together: each is an open file with a row group in the making.
_MOST_FILES: Final = 512


def group_ranges(files: Iterable[Sequence[FileRange]], unit_size: int) -> Iterator[tuple[FileRange, ...]]:
    """Group the ranges of one source's files into units.

    Args:
        files: the ranges of each file, files in path order.
        unit_size: bytes of input per unit.
    """
    group: list[FileRange] = []
    size, opening = 0, unit_size // _FILES_PER_UNIT
    for ranges in files:
        if not ranges:
            continue
        weight = ranges[0].weight
        if len(ranges) > 1 or weight >= unit_size:
            if group:
                yield tuple(group)
            yield from ((part,) for part in ranges)
            group, size = [], 0
            continue
        weight += opening
        group += ranges
        size += weight
        # By hash: with a chance proportional to the file's weight.
        chance = min(1.0, _BOUNDARIES_PER_UNIT * weight / unit_size)
        drawn = xxhash.xxh3_64_intdigest(ranges[0].file.path.encode())
        if size >= unit_size or drawn < chance * 2**64:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def range_identity(ranges: Sequence[FileRange]) -> list[dict[str, object]]:
    """The canonical form of a unit's inputs: nothing of the machine they lie on."""
    return [
        {
            "path": part.file.path,
            "size": part.file.size,
            "token": part.file.token,
            "format": part.file.format,
            "compression": part.file.compression,
            "start": part.start,
            "stop": part.stop,
            # Left out where there is no limit: the identities of units that have none stay what they were.
            **({} if part.rows is None else {"rows": part.rows}),
        }
        for part in ranges
    ]


_FINENESS: Final = 4  # knots of row groups or batches that make up about one file


def files_of_sources(
    build: ResolvedBuild, ranges: Sequence[Iterable[Sequence[FileRange]]]
) -> list[int | None]:
    """Return how many files each source gets, None: as many as units and sizes make.

    A source's own `num_shards` is its number; what is left of the build's goes to the other sources by their
    weight (input bytes), at least one to each.

    Args:
        ranges: of each source, in any groups.
    """
    own = [source.num_shards for source in build.sources]
    if build.num_shards is None:
        return own
    others = [index for index, number in enumerate(own) if number is None]
    left = build.num_shards - sum(number or 0 for number in own)
    weights = [sum(part.weight for group in ranges[index] for part in group) for index in others]
    dealt = _by_weight(left, weights)
    for index, number in zip(others, dealt, strict=True):
        own[index] = number
    return own


def _by_weight(count: int, weights: Sequence[int]) -> list[int]:
    """Deal `count` things, one to each and the rest by the largest remainder; ties go to the first."""
    total, rest = sum(weights), count - len(weights)
    if not total:
        weights, total = [1] * len(weights), len(weights)
    dealt = [1 + rest * weight // total for weight in weights]
    order = sorted(range(len(weights)), key=lambda index: (-(rest * weights[index] % total), index))
    for index in order[: count - sum(dealt)]:
        dealt[index] += 1
    return dealt


def cut(
    source: ResolvedSource, parts: Sequence[Sequence[FileRange]], files: int
) -> list[tuple[tuple[FileRange, ...], int]]:
    """Return the ranges of each unit and how many files it writes; these sum up to `files`.

    Args:
        parts: the ranges of each file of the source, in order.

    Raises:
        ConfigError: one unit would have to write more files at a time than it may.
    """
    knot = max(1, sum(part.weight for whole in parts for part in whole) // (_FINENESS * files))
    finer: list[FileRange] = []
    for whole in parts:
        # Row groups or batches were joined to units: of these, ranges of about `knot` bytes.
        joined = bool(whole) and source.num_rows is None and whole[0].file.has_blocks
        finer += split_file(whole[0].file, knot, source.storage_options) if joined else whole
    rope = _Rope(finer)
    marks, extra = rope.cuts(files)
    found = [(tuple(rope.between(a, b)), 1 + extra[index]) for index, (a, b) in enumerate(pairwise(marks))]
    most = max(number for _, number in found)
    if most * len(source.split_names) > _MOST_FILES:
        raise ConfigError(
            f"source {source.name!r}: num_shards makes one reader write {most} files for each of "
            f"{len(source.split_names)} splits at a time, because its input cannot be cut; at most {_MOST_FILES} can "
            "be. Lower num_shards, or give the input as JSON Lines, Parquet with more row groups, or more files",
            source=source.name,
            files=most,
        )
    return found


class _Rope:
    """Ranges laid end to end; places on it count weight from its beginning."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self._ranges = ranges
        self._ends = list(accumulate((part.weight for part in ranges), initial=0))

    def cuts(self, files: int) -> tuple[list[int], Counter[int]]:
        """Return where the rope is cut, both ends included, and how many files more each piece has than one."""
        total = self._ends[-1]
        made = [0]
        refused: list[int] = []
        at = 0
        for number in range(1, files):
            wanted = total * number // files
            while at < len(self._ranges) - 1 and self._ends[at + 1] <= wanted:
                at += 1
            place = wanted
            if not self._ranges or not _can_be_cut(self._ranges[at]):  # the nearer end of the knot it lies on
                begin, end = self._ends[at], self._ends[at + 1] if self._ranges else 0
                place = begin if wanted - begin <= end - wanted else end
            if made[-1] < place < total:
                made.append(place)
            else:
                refused.append(wanted)
        marks = [*made, total]
        # The piece that each place lies in.
        return marks, Counter(max(0, min(bisect_right(marks, at), len(marks) - 1) - 1) for at in refused)

    def between(self, begin: int, end: int) -> Iterator[FileRange]:
        """Yield the ranges, or parts of them, from one place to another; neighbours in one file joined."""
        last: FileRange | None = None
        for piece in self._pieces(begin, end):
            joint = None if last is None else _joined(last, piece)
            if last is not None and joint is None:
                yield last
            last = joint or piece
        if last is not None:
            yield last

    def _pieces(self, begin: int, end: int) -> Iterator[FileRange]:
        for index in range(max(0, bisect_left(self._ends, begin) - 1), len(self._ranges)):
            low, high = self._ends[index], self._ends[index + 1]
            if low > end:
                return
            first, stop = max(low, begin), min(high, end)
            # Of what weighs nothing, such as an empty file, an end of the rope has its share too.
            weightless = low == high and begin <= low and (low < end or end == self._ends[-1])
            if first < stop or weightless:
                part = self._ranges[index]
                if (first, stop) != (low, high):
                    begins = part.start - low
                    part = replace(part, start=begins + first, stop=begins + stop, weight=stop - first)
                yield part


def _can_be_cut(part: FileRange) -> bool:
    """Whether a range is of bytes, each line belonging to the range in which it begins."""
    return part.file.is_lines and part.file.compression is None and part.rows is None


def _joined(a: FileRange, b: FileRange) -> FileRange | None:
    """Return one range for two neighbours of a file, None where they are none."""
    if a.file != b.file or a.stop != b.start or a.rows is not None or b.rows is not None:
        return None
    records = None if a.records is None or b.records is None else a.records + b.records
    return replace(a, stop=b.stop, weight=a.weight + b.weight, records=records)
