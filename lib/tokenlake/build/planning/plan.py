"""Configuration and listing to a plan: the units, their identities, and what to expect.

Planning reads inputs (their hashes, their footers) and tokenizers; it writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeAlias

from tokenlake.account import Account
from tokenlake.build.events import Listed, Planning, Watcher, ignore
from tokenlake.build.planning.excluded import Exclusion, Positions, match_exclusions, of_unit
from tokenlake.build.planning.keptplan import kept_sources, notes_on_kept
from tokenlake.build.planning.notes import notes_on, notes_on_files
from tokenlake.build.planning.plannedtokenizers import PlannedTokenizer, check_room, padded, plan_tokenizers
from tokenlake.build.planning.settle import settle
from tokenlake.build.planning.shards import cut, files_of_sources
from tokenlake.build.planning.units import WorkUnit, group_ranges, range_identity
from tokenlake.config.identity import identity, source_identity
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.fingerprint import canonical_texts, fingerprint, joined
from tokenlake.predicate.where import Predicate
from tokenlake.schema import FORMAT_VERSION
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.limit import RecordLimit
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.local.hashcache import HashCache
from tokenlake.sources.meter import Progress
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.splitting import split_files
from tokenlake.tokenizers.fingerprint import identity as tokenizer_identity
from tokenlake.transforms.callables import sealed
from tokenlake.transforms.configured import open_chain

Only: TypeAlias = Collection[tuple[str, str]]
"""(source, path) of the input files that are planned with, whatever others there are by now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a build will do.

    Attributes:
        build: the resolved configuration.
        inputs: every input file, sources in configuration order, paths sorted.
        units: the work, in the order of the dataset's rows.
        tokenizers: per source name.
        exclusions: the lists of documents to leave out.
        fingerprint: identity of the version.
        notes: what a user should know before running.
    """

    build: ResolvedBuild
    inputs: tuple[InputFile, ...]
    units: tuple[WorkUnit, ...]
    tokenizers: dict[str, PlannedTokenizer]
    exclusions: tuple[Exclusion, ...]
    fingerprint: str
    notes: tuple[str, ...]

    @property
    def input_bytes(self) -> int:
        return sum(unit.bytes for unit in self.units)

    @property
    def source_bytes(self) -> dict[str, int]:
        """Source name to bytes of its units, in plan order."""
        sums = {source.name: 0 for source in self.build.sources}
        for unit in self.units:
            sums[unit.source] += unit.bytes
        return sums

    def source(self, name: str) -> ResolvedSource:
        return next(source for source in self.build.sources if source.name == name)

    def missed(self, accounts: Mapping[str, Account]) -> tuple[str, ...]:
        """What a finished build says of documents that were to be left out and were not there.

        Raises:
            ConfigError: a list left nothing out.
        """
        return tuple(line for each in self.exclusions for line in [*each.notes(), *each.missed(accounts)])


def make_plan(build: ResolvedBuild, *, on_event: Watcher = ignore, only: Only | None = None) -> Plan:
    """Plan a build.

    Args:
        only: as if no other files were there; sources with a limit of rows keep what they find.

    Raises:
        ConfigError: `where` is no predicate, no EOS id, or an `exclude` list that cannot be read or matches nothing.
        SourceError: a path or glob matches nothing, or an input cannot be read.
        TokenizerError: a tokenizer cannot be loaded.
    """
    _check_predicates(build)
    build = _with_code(build)
    tokenizers = plan_tokenizers(build)
    inputs: list[InputFile] = []
    ranges: list[list[list[FileRange]]] = []
    sources: list[ResolvedSource] = []
    notes: list[str] = []
    for source in build.sources:
        files, parts = _read_listing(build, source, on_event, only)
        tokenizer = tokenizers[source.name]
        settled, found = settle(
            source, files, tokenizer.files, tokenizer.eos_id if tokenizer.eos_id >= 0 else None
        )
        settled = padded(settled, tokenizer)
        check_room(settled, tokenizer)
        inputs += files
        ranges.append(parts)
        sources.append(settled)
        notes += notes_on(source, files, build.unit_size) + found
    build = replace(build, sources=kept_sources(sources, ranges))
    notes += notes_on_kept(build)
    names = [source.name for source in build.sources]
    exclusions = match_exclusions(build.sources, dict(zip(names, ranges, strict=True)), build.hash_threads)
    notes += [line for each in exclusions for line in each.notes()]
    excluded = {name: found for each in exclusions for name, found in each.positions.items()}
    units: list[WorkUnit] = []
    for source, parts, files in zip(sources, ranges, _shares(build, ranges), strict=True):
        base = canonical_texts(unit_identity(build, source, tokenizers[source.name]))
        first, passed = len(units), dict[int, int | None]()
        for group, number in _groups(build, source, parts, files):
            mine = of_unit(group, excluded.get(source.name, {}), passed)
            units.append(_unit(len(units), source, group, base, mine, number))
        notes += notes_on_files(source, files, units[first:])
    digest = fingerprint({"build": identity(build), "units": [unit.fingerprint for unit in units]})
    return Plan(build, tuple(inputs), tuple(units), tokenizers, exclusions, digest, tuple(notes))


def _shares(build: ResolvedBuild, ranges: list[list[list[FileRange]]]) -> list[int | None]:
    """How many files each source gets."""
    weights = [sum(part.weight for whole in parts for part in whole) for parts in ranges]
    return files_of_sources(build, weights)


def _groups(
    build: ResolvedBuild, source: ResolvedSource, parts: list[list[FileRange]], files: int | None
) -> Iterable[tuple[tuple[FileRange, ...], int | None]]:
    """The ranges of each unit of a source, and how many files it writes."""
    if files is None:
        return ((group, None) for group in group_ranges(parts, build.unit_size))
    return cut(source, parts, files)


def _check_predicates(build: ResolvedBuild) -> None:
    """A wrong `where` is an error before any work."""
    for source in build.sources:
        if source.where:
            try:
                Predicate(source.where)
            except ConfigError as error:
                raise ConfigError(f"datasets.{source.name}.{error}", **error.details) from error


def _with_code(build: ResolvedBuild) -> ResolvedBuild:
    """Take the code of functions into the build, and make the steps once: a wrong one is an error before any work."""
    sources: list[ResolvedSource] = []
    for source in build.sources:
        try:
            # Not the sealed ones: this process may have imported what was edited since, and workers import anew.
            open_chain(source.texts)
            texts = sealed(source.texts)
        except ConfigError as error:
            raise ConfigError(f"datasets.{source.name}: {error}", **error.details) from error
        sources.append(replace(source, texts=texts))
    return replace(build, sources=tuple(sources))


def _read_listing(
    build: ResolvedBuild, source: ResolvedSource, on_event: Watcher, only: Only | None
) -> tuple[list[InputFile], list[list[FileRange]]]:
    """List a source's files, as far as `num_rows` needs them, and cut them into ranges."""

    def tell(progress: Progress) -> None:
        on_event(Planning(source.name, *astuple(progress)))

    threads = build.hash_threads
    with HashCache() as cache:
        if source.num_rows is None:
            files = list_inputs(source, hash_threads=threads, cache=cache, on_progress=tell)
            if only is not None:
                files = [file for file in files if (file.source, file.path) in only]
            ranges = split_files(
                files, build.unit_size, source.storage_options, threads=threads, on_progress=tell
            )
        else:
            limit = RecordLimit(source, source.num_rows, build.unit_size, tell)
            files = list_inputs(
                source, hash_threads=threads, cache=cache, on_progress=tell, enough=limit.take
            )
            ranges = limit.ranges
    on_event(Listed(source.name, len(files), sum(file.size for file in files)))
    return files, ranges


def unit_identity(
    build: ResolvedBuild, source: ResolvedSource, tokenizer: PlannedTokenizer
) -> dict[str, Any]:
    """What a unit's bytes depend on besides its inputs."""
    return {
        "format_version": FORMAT_VERSION,
        "build": identity(build),
        "source": source_identity(source),
        "tokenizer": tokenizer_identity(tokenizer.facts),
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
    }


def _unit(
    index: int,
    source: ResolvedSource,
    ranges: tuple[FileRange, ...],
    base: dict[str, str],
    excluded: Positions,
    files: int | None,
) -> WorkUnit:
    mine = {str(file): positions for file, positions in excluded.items()}
    dealt = {} if files is None else {"files": files}
    own = canonical_texts({"ranges": range_identity(ranges), "excluded": mine} | dealt)
    digest = hashlib.sha256(joined(base | own)).hexdigest()
    return WorkUnit(index, source.name, ranges, sum(part.weight for part in ranges), digest, excluded, files)
