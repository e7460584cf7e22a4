"""Input files of a source: listing, hashes, the ranges of units, and notes on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final, TypeAlias, final

from tokenlake.base import numbers
from tokenlake.base.compact import CompactTuple
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.events import Listed, Planning, Watcher
from tokenlake.etl.plan.unit_ranges import group_ranges
from tokenlake.etl.sources.hash_cache import HashCache
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.listing import list_inputs, require_use_of_options
from tokenlake.etl.sources.listing_progress import OnProgress
from tokenlake.etl.sources.numbered_files import missing_numbers
from tokenlake.etl.sources.record_limit import RecordLimit
from tokenlake.etl.sources.split_choice import Select, choose
from tokenlake.etl.sources.splits import split_files, splittable
from tokenlake.etl.sources.where import Predicate
from tokenlake.etl.text.steps import open_chain, sealed

Groups: TypeAlias = list[Sequence[FileRange]]
"""The ranges of each unit of a source."""

_MOST_SHOWN: Final = 5
"""Number of files that notes name one by one."""


def require_use(source: ResolvedSource, files: Iterable[InputFile]) -> None:
    """Check that options of a source are of use for one of its files at least.

    Raises:
        ConfigError: An option is of no use.
    """
    # The default of `text_mode` fits all formats.
    text_mode = None
    if source.text_mode == "lines":
        text_mode = source.text_mode
    require_use_of_options(
        source.name, files, delimiter=source.delimiter, text_mode=text_mode
    )


def check_predicates(sources: Iterable[ResolvedSource]) -> None:
    """Check each `where`, before any work.

    Raises:
        ConfigError: A `where` is wrong.
    """
    for source in sources:
        if source.where:
            # The predicate is compiled here only for its errors.
            try:
                Predicate(source.where)
            except ConfigError as error:
                raise ConfigError(
                    f"datasets.{source.name}.{error}", **error.details
                ) from error


def with_code(source: ResolvedSource) -> ResolvedSource:
    """Return a source with the code of its functions.

    Raises:
        ConfigError: A step cannot be made.
    """
    try:
        open_chain(source.texts)
        return replace(source, texts=sealed(source.texts))
    except ConfigError as error:
        raise ConfigError(
            f"datasets.{source.name}: {error}", **error.details
        ) from error


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
        on_event: Function that receives progress.
        only: Source and path of each file that is kept; None keeps all.
        select: Function that chooses the files of an entry to list.
    """
    # Files that were hashed before and have not changed are not read again.
    on_progress = progress_of(source, on_event)
    with HashCache() as cache:
        files = list_inputs(
            source,
            hash_threads=threads,
            cache=cache,
            on_progress=on_progress,
            select=select,
        )
    # Files that were added since a version was built have no part in its plan.
    if only is None:
        return files
    return CompactTuple(
        InputFile, (file for file in files if (file.source, file.path) in only)
    )


def read_listing(
    source: ResolvedSource,
    unit_size: int,
    threads: int,
    on_event: Watcher,
    files: Sequence[InputFile] | None = None,
    select: Select = choose,
) -> tuple[Sequence[InputFile], Groups]:
    """Return the files of a source, and the ranges of its units.

    With `num_rows` only the first files are listed, as far as their records are needed.

    Args:
        source: Source to read.
        unit_size: Number of input bytes of a unit.
        threads: Number of threads that hash and read footers.
        on_event: Function that receives progress.
        files: Files as :func:`list_files` returns them; None lists them here. Unused
            for a source with `num_rows`.
        select: Function that chooses the files of an entry to list.
    """
    on_progress = progress_of(source, on_event)
    if source.num_rows is None:
        if files is None:
            files = list_files(source, threads, on_event, select=select)
        file_ranges = split_files(
            files,
            unit_size,
            source.storage_options,
            threads=threads,
            on_progress=on_progress,
        )
        return files, [compact(group) for group in group_ranges(file_ranges, unit_size)]

    # Each file is counted as it is listed, until there are enough records.
    limit = RecordLimit(source, source.num_rows, unit_size, on_progress)
    with HashCache() as cache:
        files = list_inputs(
            source,
            hash_threads=threads,
            cache=cache,
            on_progress=on_progress,
            enough=limit.take,
            select=select,
        )
    return files, [compact(group) for group in group_ranges(limit.ranges, unit_size)]


def progress_of(source: ResolvedSource, on_event: Watcher) -> OnProgress:
    """Return a function that reports the progress of a listing as events."""
    return lambda progress: on_event(Planning(source.name, *astuple(progress)))


def compact(group: tuple[FileRange, ...]) -> Sequence[FileRange]:
    """Return the ranges of a unit in little memory."""
    # A single range takes less as it is.
    if len(group) == 1:
        return group
    return CompactTuple(FileRange, group)


@final
@dataclass(frozen=True, slots=True)
class SourceFindings:
    """Observations on the files of a source.

    Attributes:
        listed: Event with their number and size.
        notes: Notes on files that one worker must read alone, and on missing files.
        origins: Notes on the places where the files come from.
    """

    listed: Listed
    notes: list[str]
    origins: list[str]


def look_at(
    source: ResolvedSource, files: Sequence[InputFile], unit_size: int
) -> SourceFindings:
    """Return the observations on the files of a source.

    Args:
        source: Source of the files.
        files: Its files.
        unit_size: Number of input bytes of a unit.
    """
    # The keys of a dict are distinct, in the order of the files.
    origins: dict[str, None] = {}
    whole_files: list[InputFile] = []
    file_count = 0
    total_bytes = 0
    for file in files:
        file_count += 1
        total_bytes += file.size
        if file.origin:
            origins[file.origin] = None
        if file.size > unit_size and not splittable(file):
            whole_files.append(file)
    # Without a file that can be split, more workers than files have nothing to do.
    notes = _notes_on_whole_files(source, whole_files)
    # A source with `num_rows` is listed only as far as its rows are needed.
    if source.num_rows is None:
        paths = (file.path for file in files)
        for note in missing_numbers(paths, source.data_files):
            notes.append(f"{source.name}: {note}")
    if whole_files and len(whole_files) == file_count:
        most_workers = numbers.plural(file_count, "worker")
        notes.append(
            f"{source.name}: none of its files can be split, so at most {most_workers} can work on it at a time"
        )
    return SourceFindings(
        Listed(source.name, file_count, total_bytes),
        notes,
        [f"{source.name}: {origin}" for origin in origins],
    )


def _notes_on_whole_files(
    source: ResolvedSource, whole_files: list[InputFile]
) -> list[str]:
    """Return notes on files that cannot be split.

    The largest files have a note each, the others one together.
    """
    notes: list[str] = []
    by_size = sorted(whole_files, key=lambda file: (-file.size, file.path))
    for file in by_size[:_MOST_SHOWN]:
        reason, remedy = _why_not_split(file)
        notes.append(
            f"{source.name}: {file.path} ({numbers.size(file.size)}) cannot be split: {reason}; a single worker "
            f"reads it from beginning to end. {remedy}"
        )
    hidden_files = by_size[_MOST_SHOWN:]
    if hidden_files:
        hidden_size = numbers.size(sum(file.size for file in hidden_files))
        notes.append(
            f"{source.name}: {len(hidden_files)} more such files, {hidden_size}"
        )
    return notes


def _why_not_split(file: InputFile) -> tuple[str, str]:
    """Return the reason why a file cannot be split, and a remedy."""
    # A stream has no place where a second worker could begin.
    if file.compression:
        remedy = "Parquet, several smaller files, or the same file uncompressed can be read by all workers."
        return f"{file.compression} is read from its beginning", remedy
    if file.format == "text":
        return (
            "the file is one document",
            "If each line is a document, set text_mode: lines.",
        )
    remedy = "Parquet, JSON Lines or several smaller files can be read by all workers."
    return f"{file.format} is read from its beginning", remedy
