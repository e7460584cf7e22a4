"""What a user should know of a plan before running it."""

from __future__ import annotations

from collections.abc import Sequence

from tokenlake.build.planning.units import WorkUnit
from tokenlake.config.resolved import ResolvedSource
from tokenlake.report import numbers
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.split import splittable

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
