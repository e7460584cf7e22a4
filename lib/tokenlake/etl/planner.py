"""From a configuration to the plan of its build; of texts: listing to units, their identities, and notes for a user.

Planning reads inputs (their hashes, their footers) and tokenizers; it writes nothing.

`retokenize`: tokens are made again, by another tokenizer, of the text that a stored version was built from. The version
knows its inputs: the manifest has paths and hashes, the record of its run how they were read. From both a build of text
is made like any other. Its inputs must still be what they were; what was added since is left alone, and what the
version holds out of training is held out again.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import chain
from typing import Any, Final, TypeAlias

from tokenlake.base import numbers
from tokenlake.base.compact import CompactTuple
from tokenlake.base.fingerprint import canonical_members, fingerprint, joined
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import card_identity, identity, resolve, source_identity
from tokenlake.config.resolved import ResolvedBuild, ResolvedHeldOut, ResolvedSource
from tokenlake.config.stages import TokenizerChoice
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.events import Listed, Planning, Watcher, ignore
from tokenlake.etl.plan.exclusions import Positions, match_exclusions, of_unit
from tokenlake.etl.plan.held_out import EarlierSets, hold_out
from tokenlake.etl.plan.kept_types import kept_sources, notes_on_kept
from tokenlake.etl.plan.parents import FoundParent, find_parents
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.plan.planned_tokenizer import PlannedTokenizer, check_room, padded, plan_tokenizers
from tokenlake.etl.plan.precedent import Precedent
from tokenlake.etl.plan.source import settle
from tokenlake.etl.plan.unit_ranges import cut, files_of_sources, group_ranges, range_identity
from tokenlake.etl.plan.unit_size import choose_unit_size, first_unit_size
from tokenlake.etl.run_log import recorded
from tokenlake.etl.sources.formats import Compression
from tokenlake.etl.sources.hash_cache import HashCache
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.listing import list_inputs, require_use_of_options
from tokenlake.etl.sources.listing_progress import OnProgress
from tokenlake.etl.sources.record_limit import RecordLimit
from tokenlake.etl.sources.split_choice import Select, choose
from tokenlake.etl.sources.splits import by_file, split_files, splittable
from tokenlake.etl.sources.where import Predicate
from tokenlake.etl.text.steps import open_chain, sealed
from tokenlake.etl.tokenizers.fingerprint import identity as tokenizer_identity
from tokenlake.runtime.schema import FORMAT_VERSION
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import InputFileEntry

_NAMED: Final = 5  # files that are named one by one

Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]

Groups: TypeAlias = list[Sequence[FileRange]]
"""The ranges of each unit of a source."""


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
        return _plan_again(whole, dataset, on_event, again)
    return make_plan(resolve(whole), on_event=on_event, again=again)


def make_plan(build: ResolvedBuild, *, on_event: Watcher = ignore, again: Precedent | None = None) -> Plan:
    """Plan a resolved build; arguments and errors are those of :func:`plan`."""
    if not build.parents:
        made = _plan_texts(build, on_event, again)
    else:
        from tokenlake.etl.plan.stored import plan_stored

        made = plan_stored(build, on_event)
    return replace(made, notes=(*build.notes, *made.notes))


def _plan_texts(build: ResolvedBuild, on_event: Watcher, again: Precedent | None) -> Plan:
    check_predicates(build.sources)
    # Not the sealed steps are opened: this process may have imported what was edited since, and workers import anew.
    build = replace(build, sources=tuple(with_code(source) for source in build.sources))
    tokenizers = plan_tokenizers(build)
    inputs: list[Sequence[InputFile]] = []
    ranges: list[Groups] = []
    sources: list[ResolvedSource] = []
    notes: list[str] = []
    left_out: list[str] = []
    wanted = None if again is None else again.inputs
    # A source with `num_rows` is listed as far as it is cut, which needs the size of a unit.
    listings = {
        source.name: list_files(source, build.hash_threads, on_event, wanted)
        for source in build.sources
        if source.num_rows is None
    }
    unit_size = _unit_size(build, listings, again)
    build = replace(build, unit_size=unit_size)
    for source in build.sources:
        listing = listings.get(source.name)
        files, groups = read_listing(source, unit_size, build.hash_threads, on_event, listing)
        listed, about, origins = look_at(source, files, unit_size)
        on_event(listed)
        notes += origins
        if source.type != "hub":  # of an id of the Hub the origin says its commit
            left_out += origins
        source, found = _settled(source, files, tokenizers[source.name])
        require_use(source, files)
        inputs.append(files)
        ranges.append(groups)
        sources.append(source)
        notes += about + found
    build = replace(build, sources=kept_sources(sources, ranges))
    notes += notes_on_kept(build)

    of_source = {source.name: groups for source, groups in zip(build.sources, ranges, strict=True)}
    exclusions = match_exclusions(build.sources, of_source, build.hash_threads)
    notes += [line for each in exclusions for line in each.notes()]
    excluded = {name: found for each in exclusions for name, found in each.positions.items()}

    # The units' own sources say nothing of the types of kept fields, which are the build's.
    earlier = EarlierSets(address_of_build(build), build.name, again.version if again else None)
    for index, source in enumerate(sources):
        gone = excluded.get(source.name, {})
        held_out, about = _held_out(build, source, ranges[index], gone, earlier, again, on_event)
        sources[index] = replace(source, held_out=held_out)
        notes += about
    build = replace(
        build,
        sources=tuple(
            replace(each, held_out=own.held_out) for each, own in zip(build.sources, sources, strict=True)
        ),
    )

    units: list[TextUnit] = []
    for source, groups, count in zip(sources, ranges, files_of_sources(build, ranges), strict=True):
        found = _units_of(build, source, tokenizers[source.name], groups, count, excluded.get(source.name))
        units += (replace(unit, index=number) for number, unit in enumerate(found, len(units)))
        if count is not None and len(found) != count:
            notes.append(
                f"{source.name}: its input cannot be cut into {numbers.plural(count, 'file')}; "
                f"{numbers.plural(len(found), 'worker')} at most read it and deal its documents out"
            )
    config = {"build": identity(build), **card_identity(build)}
    return Plan(
        build=build,
        inputs=inputs[0] if len(inputs) == 1 else CompactTuple(InputFile, chain.from_iterable(inputs)),
        units=tuple(units),
        tokenizers=tokenizers,
        fingerprint=fingerprint({**config, "units": [unit.fingerprint for unit in units]}),
        notes=tuple(notes),
        left_out=tuple(left_out),
        config={**config, "sources": {source.name: source_identity(source) for source in build.sources}},
        exclusions=exclusions,
        bad_budgets=_bad_budgets(build, units),
    )


def require_use(source: ResolvedSource, files: Iterable[InputFile]) -> None:
    """Raise ConfigError for an option of a source that none of its files has a use for."""
    lines = source.text_mode if source.text_mode == "lines" else None
    require_use_of_options(source.name, files, delimiter=source.delimiter, text_mode=lines)


def _settled(
    source: ResolvedSource, files: Sequence[InputFile], tokenizer: PlannedTokenizer
) -> tuple[ResolvedSource, list[str]]:
    """Return a source with all that only its inputs and its tokenizer can say, and notes on what was found."""
    eos_id = tokenizer.eos_id if tokenizer.eos_id >= 0 else None
    source, notes = settle(source, files, tokenizer.files, eos_id)
    source = padded(source, tokenizer)
    check_room(source, tokenizer)
    return source, notes


def check_predicates(sources: Iterable[ResolvedSource]) -> None:
    """Raise ConfigError for a wrong `where`, before any work."""
    for source in sources:
        if source.where:
            try:
                Predicate(source.where)
            except ConfigError as error:
                raise ConfigError(f"datasets.{source.name}.{error}", **error.details) from error


def with_code(source: ResolvedSource) -> ResolvedSource:
    """Take the code of functions into a source, and make its steps once; ConfigError for a wrong one."""
    try:
        open_chain(source.texts)
        return replace(source, texts=sealed(source.texts))
    except ConfigError as error:
        raise ConfigError(f"datasets.{source.name}: {error}", **error.details) from error


def list_files(
    source: ResolvedSource,
    threads: int,
    on_event: Watcher,
    only: frozenset[tuple[str, str]] | None = None,
    select: Select = choose,
) -> Sequence[InputFile]:
    """List and hash the files of a source.

    Args:
        source: Source whose files are listed.
        threads: Number of threads that hash local files.
        on_event: Receives progress.
        only: (source, path) of the files to keep; None keeps all.
        select: Function that chooses the files of an entry to list.
    """
    tell = _teller(source, on_event)
    with HashCache() as cache:
        files = list_inputs(source, hash_threads=threads, cache=cache, on_progress=tell, select=select)
    if only is None:
        return files
    return CompactTuple(InputFile, (file for file in files if (file.source, file.path) in only))


def read_listing(
    source: ResolvedSource,
    unit_size: int,
    threads: int,
    on_event: Watcher,
    files: Sequence[InputFile] | None = None,
    select: Select = choose,
) -> tuple[Sequence[InputFile], Groups]:
    """Return the files of a source, as far as `num_rows` needs them, and the ranges of its units.

    Args:
        source: Source to read.
        unit_size: Number of input bytes of a unit.
        threads: Number of threads that hash and read footers.
        on_event: Receives progress.
        files: Files as :func:`list_files` returns them; None lists them here. Unused for a source with `num_rows`.
        select: Function that chooses the files of an entry to list.
    """
    tell = _teller(source, on_event)
    if source.num_rows is None:
        if files is None:
            files = list_files(source, threads, on_event, select=select)
        parts = split_files(files, unit_size, source.storage_options, threads=threads, on_progress=tell)
        return files, [_held(group) for group in group_ranges(parts, unit_size)]

    limit = RecordLimit(source, source.num_rows, unit_size, tell)
    with HashCache() as cache:
        files = list_inputs(
            source,
            hash_threads=threads,
            cache=cache,
            on_progress=tell,
            enough=limit.take,
            select=select,
        )
    return files, [_held(group) for group in group_ranges(limit.ranges, unit_size)]


def _unit_size(
    build: ResolvedBuild, listings: Mapping[str, Sequence[InputFile]], again: Precedent | None
) -> int:
    """Return the unit size of a build of texts.

    It is the configured one, else that of the version that is planned again, else that of the earliest version of
    the dataset, else one chosen from the total size of the inputs.
    """
    if build.unit_size is not None:
        return build.unit_size
    if again is not None and again.unit_size is not None:
        return again.unit_size
    earliest = first_unit_size(address_of_build(build), build.name)
    if earliest is not None:
        return earliest
    total = 0
    for source in build.sources:
        listing = listings.get(source.name)
        if listing is None:
            listing = list_inputs(source, hashed=False)
        total += sum(file.size for file in listing)
    return choose_unit_size(total)


def _teller(source: ResolvedSource, on_event: Watcher) -> OnProgress:
    return lambda progress: on_event(Planning(source.name, *astuple(progress)))


def _held(group: tuple[FileRange, ...]) -> Sequence[FileRange]:
    """Return the ranges of a unit in little memory: one by itself takes less as it is."""
    return group if len(group) == 1 else CompactTuple(FileRange, group)


def look_at(
    source: ResolvedSource, files: Iterable[InputFile], unit_size: int
) -> tuple[Listed, list[str], list[str]]:
    """Return what was found, notes on files that one worker must read alone, and notes on where files come from."""
    origins, whole = dict[str, None](), list[InputFile]()
    count = size = 0
    for file in files:
        count, size = count + 1, size + file.size
        if file.origin:
            origins[file.origin] = None
        if file.size > unit_size and not splittable(file):
            whole.append(file)
    notes: list[str] = []
    whole.sort(key=lambda file: (-file.size, file.path))
    for file in whole[:_NAMED]:
        why, remedy = _why_whole(file)
        notes.append(
            f"{source.name}: {file.path} ({numbers.size(file.size)}) cannot be split: {why}; one worker reads it "
            f"from beginning to end, however many there are. {remedy}"
        )
    if more := whole[_NAMED:]:
        left = numbers.size(sum(file.size for file in more))
        notes.append(f"{source.name}: {len(more)} more such files, {left}")
    if whole and len(whole) == count:
        most = numbers.plural(count, "worker")
        notes.append(
            f"{source.name}: no file of it can be split, so that at most {most} can work on it at a time"
        )
    return Listed(source.name, count, size), notes, [f"{source.name}: {origin}" for origin in origins]


def _why_whole(file: InputFile) -> tuple[str, str]:
    """Why a file cannot be split, and what helps."""
    if file.compression:
        remedy = "Parquet, several smaller files, or the same file uncompressed can be read by all."
        return f"{file.compression} is read from its beginning", remedy
    if file.format == "text":
        return "the file is one document", "If each line is a document, set text_mode: lines."
    remedy = "Parquet, JSON Lines or several smaller files can be read by all."
    return f"{file.format} is read from its beginning", remedy


def _held_out(
    build: ResolvedBuild,
    source: ResolvedSource,
    groups: Groups,
    excluded: Positions,
    earlier: EarlierSets,
    again: Precedent | None,
    on_event: Watcher,
) -> tuple[ResolvedHeldOut | None, list[str]]:
    """Return what is held out of a source, and a note on it."""
    asked = source.held_out
    before = again.held_out.get(source.name) if again else None
    if asked is None or (before is not None and before.count == asked.count):
        return (None if asked is None else before), []
    threads, tell = build.hash_threads, _teller(source, on_event)
    files = list(by_file(groups))
    found, note = hold_out(source, asked, files, excluded, earlier, threads=threads, on_progress=tell)
    return found, [note]


def _units_of(
    build: ResolvedBuild,
    source: ResolvedSource,
    tokenizer: PlannedTokenizer,
    groups: Groups,
    count: int | None,
    excluded: Positions | None,
) -> list[TextUnit]:
    """Return the units of a source, which writes so many files; None: as many as their size makes."""
    pieces: Iterable[tuple[Sequence[FileRange], int | None]] = ((group, None) for group in groups)
    if count is not None:
        found = cut(source, list(by_file(groups)), count)
        pieces = ((_held(group), number) for group, number in found)
    of_all = canonical_members(
        {
            "format_version": FORMAT_VERSION,
            "build": identity(build),
            "source": source_identity(source),
            "tokenizer": tokenizer_identity(tokenizer.facts),
            "eos_id": tokenizer.eos_id,
            "pad_id": tokenizer.pad_id,
        }
    )
    units: list[TextUnit] = []
    passed: dict[int, int | None] = {}
    for group, number in pieces:
        ranges = tuple(group)
        gone = of_unit(ranges, excluded, passed) if excluded else {}
        own: dict[str, Any] = {"ranges": range_identity(ranges)}
        own["excluded"] = {str(file): positions for file, positions in gone.items()}
        if number is not None:
            own["files"] = number
        units.append(
            TextUnit(
                index=len(units),
                source=source.name,
                bytes=sum(part.weight for part in ranges),
                fingerprint=hashlib.sha256(joined(of_all | canonical_members(own))).hexdigest(),
                ranges=group,
                excluded=gone,
                files=number,
            )
        )
    return units


_OF_TOKENS: Final = (
    *("tokenizer_kwargs", "long_documents", "truncation_strategy", "truncation_side", "num_shards"),
    *("save_path", "save_format", "shard_column", "cache_path"),
)
"""Options of a dataset that are about its tokens and files, which are made anew."""

_OF_READING: Final = ("on_bad_record", "max_bad_fraction", "splits")
"""Options of a dataset that the section `source` has, too."""


def _plan_again(
    config: PipelineConfig, dataset: DatasetConfig, on_event: Watcher, again: Precedent | None
) -> Plan:
    """Plan to tokenize the text of a stored version again: of `dataset`, the configuration's only one.

    Raises:
        ConfigError: the version was not built from text, or its run's configuration is not kept or not used, or its
            inputs are not what they were.
        IntegrityError: its manifest is damaged.
    """
    asked = resolve(config)
    catalog = Catalog(open_store(address_of_build(asked)))
    (parent,) = find_parents(catalog, asked.parents, asked.name)
    whole = _built_from(catalog, parent, config)
    texts = tuple(_made_again(each, whole, config.tokenizer_of(dataset)) for each in whole.datasets)
    build = resolve(config.model_copy(update={"datasets": texts, "source": whole.source}))
    # Of a version of another dataset, whose numbers say nothing here.
    precedent = again or replace(Precedent.of(parent.manifest), version=None)
    try:
        plan = make_plan(build, on_event=on_event, again=precedent)
    except SourceNotFoundError as error:
        raise _changed_text(parent, str(error)) from error
    if changes := input_changes(parent.manifest.inputs, plan.inputs, added=True):
        raise _changed_text(parent, "; ".join(changes))
    names = ", ".join({source.tokenizer.name_or_path for source in build.sources})
    note = f"{parent.name}: the text of {parent.reference} is tokenized again, by {names}"
    return replace(plan, parents=(parent,), notes=(note, *plan.notes))


def _changed_text(parent: FoundParent, why: str) -> ConfigError:
    return parent.wrong(
        f"the text of {parent.reference} is not what it was: {why}. Restore it; or build {parent.manifest.dataset} "
        "again, whose next version is of what there is now; or write data_files in place of dataset",
        ".retokenize",
    )


def _built_from(catalog: Catalog, parent: FoundParent, config: PipelineConfig) -> PipelineConfig:
    """Return the configuration by which a version was built from text."""
    manifest = parent.manifest
    if "around" in manifest.config.get("build", {}):
        made_of = ", ".join(f"{each.dataset}@v{each.version}" for each in manifest.parents)
        raise parent.wrong(
            f"{parent.reference} was made of {made_of}, and not of text; name the versions that were built from text",
            ".retokenize",
        )
    if manifest.kind == "preference":
        raise parent.wrong(
            f"{parent.reference} holds preferences, which are neither packed nor mixed", ".retokenize"
        )
    where, remedy = Layout(manifest.dataset, manifest.version), "write data_files in place of dataset"
    found = recorded(catalog.store, where, manifest.fingerprint, remedy)
    whole = load_config(found)
    if (before := whole.retokenized) is None:
        return whole
    # It was tokenized again itself, of a version of the same store.
    whole = whole.model_copy(update={"save": config.save})
    asked = resolve(whole)
    (first,) = find_parents(catalog, asked.parents, asked.name)
    texts = _built_from(catalog, first, config)
    again = tuple(_made_again(each, texts, whole.tokenizer_of(before)) for each in texts.datasets)
    return whole.model_copy(update={"datasets": again, "source": texts.source})


def _made_again(
    dataset: DatasetConfig, whole: PipelineConfig, choice: TokenizerChoice | None
) -> DatasetConfig:
    """Return a source as it was read, with another tokenizer; what its sections said, it says itself."""
    own: dict[str, Any] = {name: getattr(dataset, name) for name in _OF_READING}
    said = {name: getattr(whole.source, name) if value is None else value for name, value in own.items()}
    spelled = dataset.special_tokens_in_text or whole.tokenize.special_tokens_in_text
    usual = dataset.special_tokens_in_text is None and spelled == "literal"
    return dataset.model_copy(
        update={
            **{name: DatasetConfig.model_fields[name].get_default() for name in _OF_TOKENS},
            **said,
            "special_tokens_in_text": None if usual else spelled,
            "tokenizer": choice,
        }
    )


Identified: TypeAlias = InputFile | InputFileEntry
"""An input file as identity knows it: by source, path, size and token."""

_SHOWN: Final = 5  # inputs that a message names


def input_changes(
    wanted: Iterable[Identified], got: Iterable[Identified], *, added: bool = False
) -> list[str]:
    """Return a clause for each input that changed or vanished; with `added` also for those that are new."""
    present = {(file.source, file.path): file for file in got}
    expected = {(file.source, file.path): file for file in wanted}
    changes: list[str] = []
    for name, file in expected.items():
        before = f"{file.size} bytes, {file.token}"
        current = present.get(name)
        now = "gone" if current is None else f"{current.size} bytes, {current.token}"
        if now != before:
            changes.append(f"{file.path} of {file.source} is {now}; expected {before}")
    if added:
        changes += [
            f"{path} of {source} is new" for source, path in present if (source, path) not in expected
        ]
    hidden = len(changes) - _SHOWN
    if hidden > 0:
        return [*changes[:_SHOWN], f"and {hidden} more"]
    return changes


#: No stream is longer than so many times its compressed size: deflate's longest match in its shortest code,
#: a zstd block of 128 KiB in four bytes, 255 bytes to a byte of lz4, and 45.9 MB of one value in a bzip2 block of 46
#: bytes. Of xz 6,800 times were measured, with zeros.
_MOST_EXPANSION: Final[dict[Compression | None, int]] = {
    None: 1,
    "gzip": 1032,
    "zstd": 32768,
    "lz4": 256,
    "bzip2": 1 << 20,
    "xz": 1 << 15,
}

#: Where a file does not say how many records it has and bytes tell nothing: an Arrow batch of nulls has none.
_UNBOUNDED: Final = 1 << 40


def _bad_budgets(build: ResolvedBuild, units: Iterable[TextUnit]) -> dict[str, int]:
    """Return source to the bad records in one unit past which it fails whatever the other units hold."""
    shares = {
        each.name: each.max_bad_fraction for each in build.sources if each.on_bad_record == "quarantine"
    }
    most = Counter[str](dict.fromkeys(shares, 0))
    for unit in units:
        if unit.source in shares:
            most[unit.source] += most_records(unit.ranges)
    return {name: int(share * most[name]) for name, share in shares.items()}


def most_records(ranges: Iterable[FileRange]) -> int:
    """Return a number that the ranges of a unit have no more records than."""
    return sum(_most_in_range(part) for part in ranges)


def _most_in_range(part: FileRange) -> int:
    """No range holds more records than this; `records` and `rows` count them, bytes only bound them."""
    most = part.records
    if most is None:
        least = part.file.facts.least_record_bytes
        factor = _MOST_EXPANSION[part.file.compression]
        most = _UNBOUNDED if least is None else (part.stop - part.start) * factor // least + 1
    return most if part.rows is None else min(most, part.rows)
