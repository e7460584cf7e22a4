"""From a configuration to the plan of its build; of texts: listing to units, their identities, and notes for a user.

Planning reads inputs (their hashes, their footers) and tokenizers; it writes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Final, TypeAlias

from tokenlake import numbers
from tokenlake.config.identity import identity, source_identity
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
from tokenlake.etl.plan.stored import plan_stored
from tokenlake.etl.plan.tokenizer import PlannedTokenizer, check_room, padded, plan_tokenizers
from tokenlake.etl.plan.units import bad_budgets, cut, files_of_sources, group_ranges, range_identity
from tokenlake.fingerprint import canonical_texts, fingerprint, joined
from tokenlake.schema import FORMAT_VERSION
from tokenlake.sources.hash_cache import HashCache
from tokenlake.sources.inputs import FileRange, InputFile, OnProgress
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.splits import RecordLimit, split_files, splittable
from tokenlake.sources.where import Predicate
from tokenlake.store.address import address_of_build
from tokenlake.text.steps import open_chain, sealed
from tokenlake.tokenizers.fingerprint import identity as tokenizer_identity

_NAMED: Final = 5  # files that are named one by one


def notes_on(source: ResolvedSource, files: Sequence[InputFile], unit_size: int) -> list[str]:
    """Return notes on where files come from, and on those that one worker must read alone."""
    origins = dict.fromkeys(file.origin for file in files if file.origin)
    return [f"{source.name}: {origin}" for origin in origins] + _on_whole(source, files, unit_size)


def notes_on_files(source: ResolvedSource, files: int | None, units: Sequence[TextUnit]) -> list[str]:
    """Return a note where fewer workers than files can work, because documents have to be dealt out to files."""
    if files is None or len(units) == files:
        return []
    return [
        f"{source.name}: its input cannot be cut into {numbers.plural(files, 'file')}; "
        f"{numbers.plural(len(units), 'worker')} at most read it and deal its documents out"
    ]


def _on_whole(source: ResolvedSource, files: Sequence[InputFile], unit_size: int) -> list[str]:
    whole = sorted(
        (file for file in files if file.size > unit_size and not splittable(file)),
        key=lambda file: (-file.size, file.path),
    )
    if not whole:
        return []
    notes = [
        f"{source.name}: {file.path} ({numbers.size(file.size)}) cannot be split: {why}; one worker reads it "
        f"from beginning to end, however many there are. {remedy}"
        for file, (why, remedy) in ((file, _why(file)) for file in whole[:_NAMED])
    ]
    if len(whole) > _NAMED:
        size = numbers.size(sum(file.size for file in whole[_NAMED:]))
        notes.append(f"{source.name}: {len(whole) - _NAMED} more such files, {size}")
    if len(whole) == len(files):
        notes.append(
            f"{source.name}: no file of it can be split, so that at most "
            f"{numbers.plural(len(files), 'worker')} can work on it at a time"
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


def plan_texts(build: ResolvedBuild, on_event: Watcher, again: Precedent | None) -> Plan:
    """Plan a build of texts.

    Args:
        again: as if nothing had been added since; sources with a limit of rows keep what they find.

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
        files, parts = _read_listing(build, source, on_event, None if again is None else again.inputs)
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
    sources, more = _held_out(build, sources, ranges, excluded, again, on_event)
    held_out = {source.name: source.held_out for source in sources}
    build = replace(
        build, sources=tuple(replace(each, held_out=held_out[each.name]) for each in build.sources)
    )
    notes += more
    units: list[TextUnit] = []
    weights = [sum(part.weight for whole in parts for part in whole) for parts in ranges]
    for source, parts, files in zip(sources, ranges, files_of_sources(build, weights), strict=True):
        base = canonical_texts(unit_identity(build, source, tokenizers[source.name]))
        first, passed = len(units), dict[int, int | None]()
        for group, number in _groups(build, source, parts, files):
            mine = of_unit(group, excluded.get(source.name, {}), passed)
            units.append(_unit(len(units), source, group, base, mine, number))
        notes += notes_on_files(source, files, units[first:])
    digest = fingerprint({"build": identity(build), "units": [unit.fingerprint for unit in units]})
    return Plan(
        build=build,
        inputs=tuple(inputs),
        units=tuple(units),
        tokenizers=tokenizers,
        fingerprint=digest,
        notes=tuple(notes),
        config={
            "build": identity(build),
            "sources": {source.name: source_identity(source) for source in build.sources},
        },
        exclusions=exclusions,
        bad_budgets=bad_budgets(build, units),
    )


def _held_out(
    build: ResolvedBuild,
    sources: Sequence[ResolvedSource],
    ranges: Sequence[Sequence[Sequence[FileRange]]],
    excluded: Mapping[str, Positions],
    again: Precedent | None,
    on_event: Watcher,
) -> tuple[list[ResolvedSource], list[str]]:
    """Return the sources with what is held out of each, and notes on it."""
    earlier = EarlierSets(address_of_build(build), build.name, again.version if again else None)
    found: list[ResolvedSource] = []
    notes: list[str] = []
    for source, parts in zip(sources, ranges, strict=True):
        asked = source.held_out
        if asked is not None:
            as_it_was = again.held_out.get(source.name) if again else None
            if as_it_was is not None and as_it_was.count == asked.count:
                asked = as_it_was
            else:
                gone = excluded.get(source.name, {})
                tell = _teller(source, on_event)
                asked, note = hold_out(
                    source, asked, parts, gone, earlier, threads=build.hash_threads, on_progress=tell
                )
                notes.append(note)
        found.append(replace(source, held_out=asked))
    return found, notes


def _teller(source: ResolvedSource, on_event: Watcher) -> OnProgress:
    return lambda progress: on_event(Planning(source.name, *astuple(progress)))


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
    build: ResolvedBuild,
    source: ResolvedSource,
    on_event: Watcher,
    only: frozenset[tuple[str, str]] | None,
) -> tuple[list[InputFile], list[list[FileRange]]]:
    """List a source's files, as far as `num_rows` needs them, and cut them into ranges."""
    tell, threads = _teller(source, on_event), build.hash_threads
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
) -> TextUnit:
    mine = {str(file): positions for file, positions in excluded.items()}
    dealt = {} if files is None else {"files": files}
    own = canonical_texts({"ranges": range_identity(ranges), "excluded": mine} | dealt)
    digest = hashlib.sha256(joined(base | own)).hexdigest()
    return TextUnit(
        index=index,
        source=source.name,
        bytes=sum(part.weight for part in ranges),
        fingerprint=digest,
        ranges=ranges,
        excluded=excluded,
        files=files,
    )


Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]


def plan_build(config: Configuration, on_event: Watcher = ignore, *, again: Precedent | None = None) -> Plan:
    """Plan what a configuration asks for; one that mixes text is several builds, see :mod:`tokenlake.config.steps`.

    Args:
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
    """Plan a resolved build; arguments and errors are those of :func:`plan_build`."""
    return plan_stored(build, on_event) if build.parents else plan_texts(build, on_event, again)
