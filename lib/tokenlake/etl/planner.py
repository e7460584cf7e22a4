"""From a configuration to the plan of its build; of texts: listing to units, their identities, and notes for a user.

Planning reads inputs (their hashes, their footers) and tokenizers; it writes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import chain
from typing import Any, Final, TypeAlias

from tokenlake import numbers
from tokenlake.compact import CompactTuple
from tokenlake.config.identity import card_identity, identity, source_identity
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.events import Listed, Planning, Watcher, ignore
from tokenlake.etl.plan.exclude import Positions, match_exclusions, of_unit
from tokenlake.etl.plan.held_out import EarlierSets, Precedent, hold_out
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.plan.retokenize import TextAgain
from tokenlake.etl.plan.source import kept_sources, notes_on_kept, settle
from tokenlake.etl.plan.tokenizer import PlannedTokenizer, check_room, padded, plan_tokenizers
from tokenlake.etl.plan.units import (
    bad_budgets,
    cut,
    files_of_sources,
    group_ranges,
    range_identity,
)
from tokenlake.fingerprint import canonical_members, fingerprint, joined
from tokenlake.schema import FORMAT_VERSION
from tokenlake.sources.hash_cache import HashCache
from tokenlake.sources.inputs import FileRange, InputFile, OnProgress
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.splits import RecordLimit, by_file, split_files, splittable
from tokenlake.sources.where import Predicate
from tokenlake.store.address import address_of_build
from tokenlake.text.steps import open_chain, sealed
from tokenlake.tokenizers.fingerprint import identity as tokenizer_identity

_NAMED: Final = 5  # files that are named one by one


def look_at(source: ResolvedSource, files: Iterable[InputFile], unit_size: int) -> tuple[Listed, list[str]]:
    """Return what was found, and notes on where files come from, and on those that one worker must read alone."""
    origins, whole = dict[str, None](), list[InputFile]()
    count = size = 0
    for file in files:
        count, size = count + 1, size + file.size
        if file.origin:
            origins[file.origin] = None
        if file.size > unit_size and not splittable(file):
            whole.append(file)
    notes = [f"{source.name}: {origin}" for origin in origins] + _on_whole(source, whole, count)
    return Listed(source.name, count, size), notes


def notes_on_files(source: ResolvedSource, files: int | None, units: Sequence[TextUnit]) -> list[str]:
    """Return a note where fewer workers than files can work, because documents have to be dealt out to files."""
    if files is None or len(units) == files:
        return []
    return [
        f"{source.name}: its input cannot be cut into {numbers.plural(files, 'file')}; "
        f"{numbers.plural(len(units), 'worker')} at most read it and deal its documents out"
    ]


def _on_whole(source: ResolvedSource, whole: list[InputFile], files: int) -> list[str]:
    """Notes on files that cannot be split, of so many files."""
    if not whole:
        return []
    whole.sort(key=lambda file: (-file.size, file.path))
    notes = [
        f"{source.name}: {file.path} ({numbers.size(file.size)}) cannot be split: {why}; one worker reads it "
        f"from beginning to end, however many there are. {remedy}"
        for file, (why, remedy) in ((file, _why(file)) for file in whole[:_NAMED])
    ]
    if len(whole) > _NAMED:
        size = numbers.size(sum(file.size for file in whole[_NAMED:]))
        notes.append(f"{source.name}: {len(whole) - _NAMED} more such files, {size}")
    if len(whole) == files:
        notes.append(
            f"{source.name}: no file of it can be split, so that at most "
            f"{numbers.plural(files, 'worker')} can work on it at a time"
        )
    return notes


def _why(file: InputFile) -> tuple[str, str]:
    """Why a file cannot be split, and what helps."""
    if file.compression:
        remedy = "Parquet, several smaller files, or the same file uncompressed can be read by all."
        return f"{file.compression} is read from its beginning", remedy
    if file.format == "text":
        return "the file is one document", "If each line is a document, set text_mode: lines."
    remedy = "Parquet, JSON Lines or several smaller files can be read by all."
    return f"{file.format} is read from its beginning", remedy


Groups: TypeAlias = list[Sequence[FileRange]]
"""The ranges of each unit of a source."""


def plan_texts(build: ResolvedBuild, on_event: Watcher, again: Precedent | None) -> Plan:
    """Plan a build of texts.

    Args:
        again: as if nothing had been added since; sources with a limit of rows keep what they find.

    Raises:
        ConfigError: `where` is no predicate, no EOS id, or an `exclude` list that cannot be read or matches nothing.
        SourceError: a path or glob matches nothing, or an input cannot be read.
        TokenizerError: a tokenizer cannot be loaded.
    """
    check_predicates(build.sources)
    build = _with_code(build)
    tokenizers = plan_tokenizers(build)
    inputs: list[Sequence[InputFile]] = []
    ranges: list[Groups] = []
    sources: list[ResolvedSource] = []
    notes: list[str] = []
    for source in build.sources:
        wanted = None if again is None else again.inputs
        files, groups = read_listing(source, build.unit_size, build.hash_threads, on_event, wanted)
        listed, about = look_at(source, files, build.unit_size)
        on_event(listed)
        tokenizer = tokenizers[source.name]
        settled, found = settle(
            source, files, tokenizer.files, tokenizer.eos_id if tokenizer.eos_id >= 0 else None
        )
        settled = padded(settled, tokenizer)
        check_room(settled, tokenizer)
        inputs.append(files)
        ranges.append(groups)
        sources.append(settled)
        notes += about + found
    build = replace(build, sources=kept_sources(sources, ranges))
    notes += notes_on_kept(build)
    names = [source.name for source in build.sources]
    exclusions = match_exclusions(build.sources, dict(zip(names, ranges, strict=True)), build.hash_threads)
    notes += [line for each in exclusions for line in each.notes()]
    excluded = {name: found for each in exclusions for name, found in each.positions.items()}
    sources, more = _held_out(build, sources, ranges, excluded, again, on_event)
    held_out = {source.name: source.held_out for source in sources}
    build = replace(
        build, sources=tuple(replace(each, held_out=held_out[each.name]) for each in build.sources)
    )
    notes += more
    units: list[TextUnit] = []
    for source, groups, files in zip(sources, ranges, files_of_sources(build, ranges), strict=True):
        base = canonical_members(unit_identity(build, source, tokenizers[source.name]))
        first, passed = len(units), dict[int, int | None]()
        for group, number in _units_of(source, groups, files):
            mine = of_unit(group, excluded[source.name], passed) if source.name in excluded else {}
            units.append(_unit(len(units), source, group, base, mine, number))
        notes += notes_on_files(source, files, units[first:])
    card, made = card_identity(build), [unit.fingerprint for unit in units]
    digest = fingerprint({"build": identity(build), "units": made, **card})
    return Plan(
        build=build,
        inputs=inputs[0] if len(inputs) == 1 else CompactTuple(InputFile, chain.from_iterable(inputs)),
        units=tuple(units),
        tokenizers=tokenizers,
        fingerprint=digest,
        notes=tuple(notes),
        config={
            "build": identity(build),
            "sources": {source.name: source_identity(source) for source in build.sources},
            **card,
        },
        exclusions=exclusions,
        bad_budgets=bad_budgets(build, units),
    )


def _held_out(
    build: ResolvedBuild,
    sources: Sequence[ResolvedSource],
    ranges: Sequence[Groups],
    excluded: Mapping[str, Positions],
    again: Precedent | None,
    on_event: Watcher,
) -> tuple[list[ResolvedSource], list[str]]:
    """Return the sources with what is held out of each, and notes on it."""
    earlier = EarlierSets(address_of_build(build), build.name, again.version if again else None)
    found: list[ResolvedSource] = []
    notes: list[str] = []
    for source, groups in zip(sources, ranges, strict=True):
        asked = source.held_out
        if asked is not None:
            as_it_was = again.held_out.get(source.name) if again else None
            if as_it_was is not None and as_it_was.count == asked.count:
                asked = as_it_was
            else:
                gone = excluded.get(source.name, {})
                tell = _teller(source, on_event)
                asked, note = hold_out(
                    source,
                    asked,
                    list(by_file(groups)),
                    gone,
                    earlier,
                    threads=build.hash_threads,
                    on_progress=tell,
                )
                notes.append(note)
        found.append(replace(source, held_out=asked))
    return found, notes


def _teller(source: ResolvedSource, on_event: Watcher) -> OnProgress:
    return lambda progress: on_event(Planning(source.name, *astuple(progress)))


def _units_of(
    source: ResolvedSource, groups: Groups, files: int | None
) -> Iterable[tuple[Sequence[FileRange], int | None]]:
    """The ranges of each unit of a source, and how many files it writes."""
    if files is None:
        return ((group, None) for group in groups)
    pieces = cut(source, list(by_file(groups)), files)
    return ((_held(group), number) for group, number in pieces)


def check_predicates(sources: Iterable[ResolvedSource]) -> None:
    """Raise ConfigError for a wrong `where`, before any work."""
    for source in sources:
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


def read_listing(
    source: ResolvedSource,
    unit_size: int,
    threads: int,
    on_event: Watcher,
    only: frozenset[tuple[str, str]] | None = None,
) -> tuple[Sequence[InputFile], Groups]:
    """List a source's files, as far as `num_rows` needs them, and cut them into the ranges of units."""
    tell = _teller(source, on_event)
    with HashCache() as cache:
        if source.num_rows is None:
            files = list_inputs(source, hash_threads=threads, cache=cache, on_progress=tell)
            if only is not None:
                wanted = (file for file in files if (file.source, file.path) in only)
                files = CompactTuple(InputFile, wanted)
            parts = split_files(files, unit_size, source.storage_options, threads=threads, on_progress=tell)
        else:
            limit = RecordLimit(source, source.num_rows, unit_size, tell)
            files = list_inputs(
                source, hash_threads=threads, cache=cache, on_progress=tell, enough=limit.take
            )
            parts = limit.ranges
    return files, [_held(group) for group in group_ranges(parts, unit_size)]


def _held(group: tuple[FileRange, ...]) -> Sequence[FileRange]:
    """Return the ranges of a unit in little memory: one by itself takes less as it is."""
    return group if len(group) == 1 else CompactTuple(FileRange, group)


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
    group: Sequence[FileRange],
    base: dict[str, bytes],
    excluded: Positions,
    files: int | None,
) -> TextUnit:
    ranges = tuple(group)
    mine = {str(file): positions for file, positions in excluded.items()}
    dealt = {} if files is None else {"files": files}
    own = canonical_members({"ranges": range_identity(ranges), "excluded": mine} | dealt)
    digest = hashlib.sha256(joined(base | own)).hexdigest()
    return TextUnit(
        index=index,
        source=source.name,
        bytes=sum(part.weight for part in ranges),
        fingerprint=digest,
        ranges=group,
        excluded=excluded,
        files=files,
    )


Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]


def plan(config: Configuration, on_event: Watcher = ignore, *, again: Precedent | None = None) -> Plan:
    """Plan what a configuration asks for; one that mixes text is several builds, see :mod:`tokenlake.config.resolve`.

    ::

        tl.plan("books.yaml").units

    Args:
        config: what :func:`tokenlake.build_dataset` takes.
        on_event: is told what was listed and cut so far.
        again: of texts, the version that is planned again, as if nothing had been added since.

    Raises:
        ConfigError, SourceError, TokenizerError: it cannot be planned.
    """
    whole = load_config(config)
    if (dataset := whole.retokenized) is not None:
        return _plan_again(TextAgain.of(whole, dataset), on_event, again)
    return make_plan(resolve(whole), on_event=on_event, again=again)


def _plan_again(text: TextAgain, on_event: Watcher, again: Precedent | None) -> Plan:
    """Plan a build of the text of a stored version."""
    try:
        plan = make_plan(text.build, on_event=on_event, again=again or text.precedent)
    except SourceNotFoundError as error:
        raise text.changed(str(error)) from error
    text.require_same(plan.inputs)
    return replace(plan, parents=(text.parent,), notes=(text.note, *plan.notes))


def make_plan(build: ResolvedBuild, *, on_event: Watcher = ignore, again: Precedent | None = None) -> Plan:
    """Plan a resolved build; arguments and errors are those of :func:`plan`."""
    if not build.parents:
        return plan_texts(build, on_event, again)
    from tokenlake.etl.plan.stored import plan_stored

    return plan_stored(build, on_event)
