"""Configuration and listing to a plan: the units, their identities, and what to expect.

Planning reads inputs (their hashes, their footers) and tokenizers; it writes nothing.

The tokenizer of each source as a plan finds it: its files, its special ids, and whether they fit what is asked.

What a user should know of a plan before running it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeAlias

from tokenlake.config.identity import identity, source_identity
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.events import Listed, Planning, Watcher, ignore
from tokenlake.etl.plan.exclude import Exclusion, Positions, match_exclusions, of_unit
from tokenlake.etl.plan.source import kept_sources, notes_on_kept, settle
from tokenlake.etl.plan.units import WorkUnit, cut, files_of_sources, group_ranges, range_identity
from tokenlake.fingerprint import canonical_texts, fingerprint, joined
from tokenlake.report import numbers
from tokenlake.schema import FORMAT_VERSION
from tokenlake.sources.inputs import FileRange, InputFile, Progress
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.local.hash_cache import HashCache
from tokenlake.sources.splits import RecordLimit, split_files, splittable
from tokenlake.sources.where import Predicate
from tokenlake.store.account import Account
from tokenlake.text.steps import open_chain, sealed
from tokenlake.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.tokenizers.fingerprint import describe, special_ids
from tokenlake.tokenizers.fingerprint import identity as tokenizer_identity


@dataclass(frozen=True, slots=True)
class PlannedTokenizer:
    """A tokenizer as the plan found it.

    Attributes:
        files: its bytes; they are copied into the version.
        facts: fingerprint, probe ids, special ids (JSON-able).
        eos_id, pad_id: as resolved for packing.
        append_eos: whether packing adds EOS, which the post-processor does not.
    """

    files: TokenizerFiles
    facts: dict[str, Any]
    eos_id: int
    pad_id: int
    append_eos: bool


def plan_tokenizers(build: ResolvedBuild) -> dict[str, PlannedTokenizer]:
    """Load and describe each source's tokenizer, each distinct one once.

    Raises:
        ConfigError: packed rows would hold ids of different tokenizers.
    """
    loaded: dict[str, tuple[TokenizerFiles, dict[str, Any]]] = {}
    planned: dict[str, PlannedTokenizer] = {}
    for source in build.sources:
        name = source.tokenizer.name_or_path
        if name not in loaded:
            files = load_tokenizer(name)
            loaded[name] = files, describe(files)
        # The same tokenizer may put EOS itself for one source, and be told not to for another.
        planned[source.name] = _resolve_ids(build, *loaded[name], source.tokenizer.add_special_tokens)
    if build.pack is not None:
        _require_one_tokenizer(build, planned)
    return planned


def _require_one_tokenizer(build: ResolvedBuild, planned: dict[str, PlannedTokenizer]) -> None:
    """Packed rows are read as one stream of ids, in which an id must mean one thing."""
    first, *others = build.sources
    for source in others:
        ours, theirs = planned[first.name], planned[source.name]
        same_ids = ours.files.json_bytes == theirs.files.json_bytes
        if not same_ids or (ours.eos_id, ours.pad_id) != (theirs.eos_id, theirs.pad_id):
            raise ConfigError(
                f"datasets.{source.name}.tokenizer: {source.tokenizer.name_or_path!r} is another tokenizer than "
                f"{first.tokenizer.name_or_path!r} of datasets.{first.name}; packed rows of one dataset are read as "
                "one stream, in which an id must mean one thing. Use one tokenizer, build a dataset for each, or "
                "write pack.enabled: false, where `file` says which source a row is of",
                source=source.name,
            )


def _resolve_ids(
    build: ResolvedBuild, files: TokenizerFiles, facts: dict[str, Any], add_special_tokens: bool
) -> PlannedTokenizer:
    """EOS and pad as DESIGN rules: configuration, then tokenizer; pad falls back to EOS."""
    asked = build.pack
    suffix = facts["suffix"] if add_special_tokens else None
    ids = special_ids(
        files, suffix, asked.eos_token_id if asked else None, asked.pad_token_id if asked else None
    )
    eos, pad = ids["eos_id"], ids["pad_id"]
    if asked and asked.eos_token_id is None and eos < 0:
        raise ConfigError(
            f"tokenizer {files.name!r} names no EOS token and pack.eos_token_id is not set; packing needs one to "
            "mark where documents end: set pack.eos_token_id",
            tokenizer=files.name,
        )
    for name, value in (("eos_token_id", eos), ("pad_token_id", pad)):
        if asked and not 0 <= value < files.vocab_size:
            raise ConfigError(
                f"pack.{name} is {value}, but tokenizer {files.name!r} has ids 0 to {files.vocab_size - 1}",
                tokenizer=files.name,
            )
    return PlannedTokenizer(files, facts, **ids)


def padded(source: ResolvedSource, planned: PlannedTokenizer) -> ResolvedSource:
    """The source with the side of its padding, which may be the tokenizer's to say."""
    settings = source.tokenizer
    if settings.padding == "none":
        return source
    if planned.pad_id < 0:
        raise ConfigError(
            f"datasets.{source.name}.tokenizer.padding: {settings.padding!r}, but tokenizer {planned.files.name!r} "
            "names neither a padding token nor an EOS token; name one in its tokenizer_config.json, or do not pad",
            tokenizer=planned.files.name,
        )
    own = planned.files.config.get("padding_side")
    side = settings.padding_side or ("left" if own == "left" else "right")
    return replace(source, tokenizer=replace(settings, padding_side=side))


def check_room(source: ResolvedSource, tokenizer: PlannedTokenizer) -> None:
    """A `max_length` that special tokens fill is an error before any work."""
    settings = source.tokenizer
    around = [*(tokenizer.facts["prefix"] or ()), *(tokenizer.facts["suffix"] or ())]
    if (
        settings.long_documents != "keep"
        and settings.add_special_tokens
        and settings.max_length <= len(around)
    ):
        raise ConfigError(
            f"datasets.{source.name}: max_length is {settings.max_length}, but tokenizer {tokenizer.files.name!r} puts "
            f"{len(around)} special tokens around every document; expected at least {len(around) + 1}"
        )


_NAMED = 5  # files that are named one by one


def notes_on(source: ResolvedSource, files: Sequence[InputFile], unit_size: int) -> list[str]:
    """Return notes on where files come from, and on those that one worker must read alone."""
    origins = dict.fromkeys(file.origin for file in files if file.origin)
    return [f"{source.name}: {origin}" for origin in origins] + _on_whole(source, files, unit_size)


def notes_on_files(source: ResolvedSource, files: int | None, units: Sequence[WorkUnit]) -> list[str]:
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
        f"{source.name}: {file.path} ({numbers.size(file.size)}) cannot be split: {_why(file)}; one worker reads it "
        f"from beginning to end, however many there are. {_remedy(file)}"
        for file in whole[:_NAMED]
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


def _why(file: InputFile) -> str:
    if file.compression:
        return f"{file.compression} is read from its beginning"
    return {
        "json": "a JSON array is read from its beginning",
        "text": "the file is one document",
    }.get(file.format, f"records of {file.format} are found from its beginning on")


def _remedy(file: InputFile) -> str:
    if file.format == "text" and file.text_mode == "document":
        return "If each line is a document, set text_mode: lines."
    if file.compression:
        return "Parquet, several smaller files, or the same file uncompressed can be read by all."
    return "Parquet, JSON Lines or several smaller files can be read by all."


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
