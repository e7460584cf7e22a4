"""Plan of a build of texts.

1. List and hash the files of each source, and choose the size of a unit where the
   configuration leaves it open.
2. Cut the files into ranges, and group them into units.
3. Complete each source with the choices that only its files and its tokenizer can
   decide.
4. Find the documents that are left out (`exclude`) and held out (`eval`).
5. Compute the identity of each unit, and of the version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, final

from tokenlake.base import numbers
from tokenlake.base.compact import CompactTuple
from tokenlake.base.fingerprint import canonical_members, fingerprint, joined
from tokenlake.config.resolve import card_identity, identity, source_identity
from tokenlake.config.resolved import ResolvedBuild, ResolvedHeldOut, ResolvedSource
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.events import Watcher
from tokenlake.etl.export.exported_inputs import require_as_exported
from tokenlake.etl.plan.exclusions import (
    Exclusion,
    Positions,
    match_exclusions,
    of_unit,
)
from tokenlake.etl.plan.held_out import EarlierSets, hold_out
from tokenlake.etl.plan.imported_tokens import settle_tokens
from tokenlake.etl.plan.kept_types import kept_sources, notes_on_kept
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.plan.planned_tokenizer import (
    PlannedTokenizer,
    check_room,
    padded,
    plan_tokenizers,
)
from tokenlake.etl.plan.precedent import Precedent
from tokenlake.etl.plan.source import settle
from tokenlake.etl.plan.unit_ranges import (
    cut_into_files,
    files_of_sources,
    range_identity,
)
from tokenlake.etl.plan.unit_size import choose_unit_size, first_unit_size
from tokenlake.etl.planner.most_records import bad_budgets
from tokenlake.etl.planner.source_files import (
    Groups,
    check_predicates,
    compact,
    list_files,
    look_at,
    progress_of,
    read_listing,
    require_use,
    with_code,
)
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.listing import list_inputs
from tokenlake.etl.sources.splits import by_file
from tokenlake.etl.tokenizers.fingerprint import identity as tokenizer_identity
from tokenlake.runtime.schema import FORMAT_VERSION


def plan_texts(
    build: ResolvedBuild, on_event: Watcher, again: Precedent | None
) -> Plan:
    """Return the plan of a build of texts.

    Args:
        build: Build whose sources are texts.
        on_event: Function that receives progress.
        again: Version that is planned again, as if no inputs had been added since; None
            for a new plan.
    """
    check_predicates(build.sources)
    # The steps are sealed but not opened here: this process may have imported code that
    # was edited since, and workers import it anew.
    build = replace(build, sources=tuple(with_code(source) for source in build.sources))
    tokenizers = plan_tokenizers(build)

    # Steps 1 to 3: the files of each source, its units, and its open choices.
    listings = _list_sources(build, on_event, again)
    build = replace(build, unit_size=_unit_size(build, listings, again))
    inputs = _read_sources(build, listings, tokenizers, on_event)
    build = replace(build, sources=kept_sources(inputs.sources, inputs.groups))
    notes = [*inputs.notes, *notes_on_kept(build)]

    # Step 4: documents that are left out or held out.
    groups_by_name: dict[str, Groups] = {}
    for source, groups in zip(build.sources, inputs.groups, strict=True):
        groups_by_name[source.name] = groups
    exclusions = match_exclusions(build.sources, groups_by_name, build.hash_threads)
    excluded = _excluded_positions(exclusions)
    for exclusion in exclusions:
        notes.extend(exclusion.notes())
    held_out, notes_on_held_out = _hold_out(
        build, inputs.sources, inputs.groups, excluded, again, on_event
    )
    notes.extend(notes_on_held_out)
    # The sources in units have no types of kept fields, which belong to the build.
    unit_sources = _with_held_out(inputs.sources, held_out)
    build = replace(build, sources=tuple(_with_held_out(build.sources, held_out)))

    # Step 5: the units and the version.
    units, notes_on_files = _units_of_sources(
        build, unit_sources, tokenizers, inputs.groups, excluded
    )
    notes.extend(notes_on_files)
    config = {"build": identity(build), **card_identity(build)}
    unit_fingerprints = [unit.fingerprint for unit in units]
    source_identities: dict[str, Any] = {}
    for source in build.sources:
        source_identities[source.name] = source_identity(source)
    # Lists of documents are part of the identity of units, and are recorded so that
    # versions can be compared. A version without a list has no such key.
    for exclusion in exclusions:
        for source_name, record in exclusion.records().items():
            source_identities[source_name]["exclude"] = record
    return Plan(
        build=build,
        inputs=_all_inputs(inputs.files),
        units=tuple(units),
        tokenizers=tokenizers,
        # The fingerprints of units have the identities of their sources.
        fingerprint=fingerprint({**config, "units": unit_fingerprints}),
        notes=tuple(notes),
        left_out=tuple(inputs.left_out),
        config={**config, "sources": source_identities},
        exclusions=exclusions,
        bad_budgets=bad_budgets(build, units),
    )


@final
@dataclass(frozen=True, slots=True)
class _SourceInputs:
    """Inputs of the sources of a build.

    The sequences of sources, files and groups are parallel.

    Attributes:
        sources: Sources with all choices that their files and tokenizers decide.
        files: Input files of each source.
        groups: Ranges of files of each unit, per source.
        notes: Notes for the user.
        left_out: Those of the notes that name files that the sources leave out.
    """

    sources: list[ResolvedSource] = field(default_factory=list[ResolvedSource])
    files: list[Sequence[InputFile]] = field(default_factory=list[Sequence[InputFile]])
    groups: list[Groups] = field(default_factory=list[Groups])
    notes: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])


def _read_sources(
    build: ResolvedBuild,
    listings: Mapping[str, Sequence[InputFile]],
    tokenizers: Mapping[str, PlannedTokenizer],
    on_event: Watcher,
) -> _SourceInputs:
    """Return the files, the units and the settled choices of each source.

    Args:
        build: Build with a unit size.
        listings: Source -> files, for sources that are listed already.
        tokenizers: Source -> tokenizer.
        on_event: Function that receives progress.
    """
    inputs = _SourceInputs()
    unit_size = build.unit_size or 0
    for source in build.sources:
        if source.tokens is not None:
            # Where documents begin in a stream of ids must be known before its files
            # are cut.
            first_files = listings.get(source.name) or list_inputs(source, hashed=False)
            # A damaged file of an export has ids that no tokenizer knows.
            require_as_exported(first_files)
            source, notes_on_ids = settle_tokens(
                source, first_files, tokenizers[source.name]
            )
            inputs.notes.extend(notes_on_ids)
        # The files of a source are listed already, unless a number of rows bounds them.
        files, groups = read_listing(
            source, unit_size, build.hash_threads, on_event, listings.get(source.name)
        )
        findings = look_at(source, files, unit_size)
        on_event(findings.listed)
        settled_source, notes_on_choices = _settle(
            source, files, tokenizers[source.name]
        )
        require_use(settled_source, files)

        inputs.sources.append(settled_source)
        inputs.files.append(files)
        inputs.groups.append(groups)
        inputs.notes.extend([*findings.origins, *findings.notes, *notes_on_choices])
        if source.type != "hub":
            # The origin of an id of the Hub is its commit, which leaves nothing out.
            inputs.left_out.extend(findings.origins)
    return inputs


def _list_sources(
    build: ResolvedBuild, on_event: Watcher, again: Precedent | None
) -> dict[str, Sequence[InputFile]]:
    """Return the files of each source without `num_rows`.

    A source with `num_rows` is listed only as far as its records are needed. For this
    the size of a unit must be known.
    """
    only = None
    if again is not None:
        only = again.inputs
    listings: dict[str, Sequence[InputFile]] = {}
    for source in build.sources:
        if source.num_rows is None:
            listings[source.name] = list_files(
                source, build.hash_threads, on_event, only
            )
    return listings


def _all_inputs(inputs: Sequence[Sequence[InputFile]]) -> Sequence[InputFile]:
    """Return the files of all sources, in little memory."""
    if len(inputs) == 1:
        return inputs[0]
    return CompactTuple(InputFile, chain.from_iterable(inputs))


def _settle(
    source: ResolvedSource, files: Sequence[InputFile], tokenizer: PlannedTokenizer
) -> tuple[ResolvedSource, list[str]]:
    """Return a source with all choices that its files and tokenizer decide.

    Returns:
        The source, and notes on the choices.
    """
    # The choices of imported ids were settled before their files were cut.
    notes: list[str] = []
    if source.tokens is None:
        eos_id = None
        if tokenizer.eos_id >= 0:
            eos_id = tokenizer.eos_id
        source, notes = settle(source, files, tokenizer.files, eos_id)
    source = padded(source, tokenizer)
    check_room(source, tokenizer)
    return source, notes


def _unit_size(
    build: ResolvedBuild,
    listings: Mapping[str, Sequence[InputFile]],
    again: Precedent | None,
) -> int:
    """Return the unit size of a build of texts.

    It is the configured one, else that of the version that is planned again, else that
    of the earliest version of the dataset, else one chosen from the total size of the
    inputs.
    """
    # A later version keeps the size: then an added file changes only the units around
    # it.
    if build.unit_size is not None:
        return build.unit_size
    if again is not None and again.unit_size is not None:
        return again.unit_size
    earliest = first_unit_size(address_of_build(build), build.name)
    if earliest is not None:
        return earliest
    # A listing without hashes is enough for sizes.
    total_bytes = 0
    for source in build.sources:
        listing = listings.get(source.name)
        if listing is None:
            listing = list_inputs(source, hashed=False)
        total_bytes += sum(file.size for file in listing)
    return choose_unit_size(total_bytes)


def _with_held_out(
    sources: Iterable[ResolvedSource],
    held_out: Mapping[str, ResolvedHeldOut | None],
) -> list[ResolvedSource]:
    """Return sources with their held-out documents."""
    changed_sources: list[ResolvedSource] = []
    for source in sources:
        changed_sources.append(replace(source, held_out=held_out[source.name]))
    return changed_sources


def _excluded_positions(exclusions: Iterable[Exclusion]) -> dict[str, Positions]:
    """Return the positions that are left out of each source."""
    positions: dict[str, Positions] = {}
    for exclusion in exclusions:
        positions.update(exclusion.positions)
    return positions


def _hold_out(
    build: ResolvedBuild,
    sources: Sequence[ResolvedSource],
    groups_of_sources: Sequence[Groups],
    excluded: Mapping[str, Positions],
    again: Precedent | None,
    on_event: Watcher,
) -> tuple[dict[str, ResolvedHeldOut | None], list[str]]:
    """Return the held-out documents of each source, and notes on them."""
    newest_version = None
    if again is not None:
        newest_version = again.version
    earlier = EarlierSets(address_of_build(build), build.name, newest_version)
    held_out: dict[str, ResolvedHeldOut | None] = {}
    notes: list[str] = []
    for source, groups in zip(sources, groups_of_sources, strict=True):
        # A version that is planned again holds out the same documents.
        requested = source.held_out
        precedent = None
        if again is not None:
            precedent = again.held_out.get(source.name)
        if requested is None:
            held_out[source.name] = None
        elif precedent is not None and precedent.count == requested.count:
            held_out[source.name] = precedent
        else:
            held_out[source.name], note = hold_out(
                source,
                requested,
                list(by_file(groups)),
                excluded.get(source.name, {}),
                earlier,
                threads=build.hash_threads,
                on_progress=progress_of(source, on_event),
            )
            notes.append(note)
    return held_out, notes


def _units_of_sources(
    build: ResolvedBuild,
    sources: Sequence[ResolvedSource],
    tokenizers: Mapping[str, PlannedTokenizer],
    groups_of_sources: Sequence[Groups],
    excluded: Mapping[str, Positions],
) -> tuple[list[TextUnit], list[str]]:
    """Return the units of all sources, numbered through, and notes.

    A note says that a source makes fewer files than asked for.
    """
    units: list[TextUnit] = []
    notes: list[str] = []
    file_counts = files_of_sources(build, groups_of_sources)
    for source, groups, file_count in zip(
        sources, groups_of_sources, file_counts, strict=True
    ):
        units_of_source = _units_of(
            build,
            source,
            tokenizers[source.name],
            groups,
            file_count,
            excluded.get(source.name),
        )
        for unit in units_of_source:
            units.append(replace(unit, index=len(units)))
        if file_count is not None and len(units_of_source) != file_count:
            notes.append(
                f"{source.name}: its input cannot be divided into {numbers.plural(file_count, 'file')}; "
                f"{numbers.plural(len(units_of_source), 'worker')} at most read it and distribute its documents"
            )
    return units, notes


def _units_of(
    build: ResolvedBuild,
    source: ResolvedSource,
    tokenizer: PlannedTokenizer,
    groups: Groups,
    file_count: int | None,
    excluded: Positions | None,
) -> list[TextUnit]:
    """Return the units of a source.

    Args:
        build: Build with its sources.
        source: Source of the units.
        tokenizer: Tokenizer of the source.
        groups: Ranges of each unit, for a source without a number of files.
        file_count: Number of files that the source writes; None where the size of its
            rows decides it.
        excluded: Positions that are left out of the source.
    """
    # 1. The members that the identities of all units share. They are encoded once, as
    #    there may be very many units.
    common_members = canonical_members(
        {
            "format_version": FORMAT_VERSION,
            "build": identity(build),
            "source": source_identity(source),
            "tokenizer": tokenizer_identity(tokenizer.facts),
            "eos_id": tokenizer.eos_id,
            "pad_id": tokenizer.pad_id,
        }
    )

    # 2. The units. Positions are counted from the beginning of a file, so the records
    #    of the ranges before are remembered.
    units: list[TextUnit] = []
    records_before: dict[int, int | None] = {}
    for group, file_number in _numbered_groups(source, groups, file_count):
        ranges = tuple(group)
        excluded_positions: Positions = {}
        if excluded:
            excluded_positions = of_unit(ranges, excluded, records_before)
        excluded_members: dict[str, list[int]] = {}
        for file_id, positions in excluded_positions.items():
            excluded_members[str(file_id)] = positions
        own_members: dict[str, Any] = {
            "ranges": range_identity(ranges),
            "excluded": excluded_members,
        }
        if file_number is not None:
            own_members["files"] = file_number
        canonical_identity = joined(common_members | canonical_members(own_members))
        unit = TextUnit(
            index=len(units),
            source=source.name,
            bytes=sum(file_range.weight for file_range in ranges),
            fingerprint=hashlib.sha256(canonical_identity).hexdigest(),
            ranges=group,
            excluded=excluded_positions,
            files=file_number,
        )
        units.append(unit)
    return units


def _numbered_groups(
    source: ResolvedSource, groups: Groups, file_count: int | None
) -> Iterator[tuple[Sequence[FileRange], int | None]]:
    """Yield the ranges of each unit, and the number of files that it writes.

    See :func:`_units_of` for the arguments.
    """
    if file_count is None:
        for group in groups:
            yield group, None
        return
    cut_groups = cut_into_files(source, list(by_file(groups)), file_count)
    for cut_group, file_number in cut_groups:
        yield compact(cut_group), file_number
