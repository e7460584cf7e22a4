"""Files that belong to data files: an index of records, borders of documents, a description of a folder.

``a.idx`` belongs to ``a.bin`` of Megatron, ``index.json`` to all chunks of litdata in its folder. Such a file is an
input like any other: it is listed, hashed and recorded. It has no records of its own, and every data file that it
belongs to has it as a companion, whose content is a part of the identity of what is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenlake.config.formats import FORMATS, FormatFacts, SourceType
from tokenlake.errors import SourceNotFoundError
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.split_choice import Choice, FilesEntry, Select

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


def companions_beside(paths: Iterable[str], wanted: SourceType | None) -> set[str]:
    """Return the companions of local files that exist, so that a data file may be named alone.

    Args:
        paths: Absolute paths of the files.
        wanted: Type that the source sets; other types than those of ids have no companions.
    """
    facts = _facts_of(wanted)
    existing: set[str] = set()
    if facts is None:
        return existing
    looked_up: set[str] = set()
    for path in paths:
        for companion in facts.companions:
            beside = _name_beside(path, companion, facts)
            if beside not in looked_up:
                looked_up.add(beside)
                if os.path.isfile(beside):  # noqa: PTH113 - no Path per file
                    existing.add(beside)
    return existing


def choosing_with_companions(select: Select, wanted: SourceType | None) -> Select:
    """Return a function that chooses files as `select` does, and their companions with them.

    The names of companions say no split: ``index.json`` belongs to whatever is chosen of its folder.

    Args:
        select: Function that chooses the files of an entry.
        wanted: Type that the source sets.
    """
    facts = _facts_of(wanted)
    if facts is None:
        return select

    def choose(entry: FilesEntry, source: ResolvedSource) -> Choice:
        companions = {path for path in entry.paths if facts.companion(path)}
        data_paths = [path for path in entry.paths if path not in companions]
        if not companions or not data_paths:
            return select(entry, source)
        choice = select(replace(entry, paths=data_paths), source)
        chosen_companions: set[str] = set()
        for path in choice.paths:
            beside = {_name_beside(path, companion, facts) for companion in facts.companions}
            chosen_companions |= beside & companions
        return replace(choice, paths=[*choice.paths, *sorted(chosen_companions)])

    return choose


def with_companions(files: Iterable[InputFile], wanted: SourceType | None) -> Iterator[InputFile]:
    """Yield files in their order, each data file with its companions.

    Args:
        files: Files of a listing.
        wanted: Type that the source sets.

    Raises:
        SourceNotFoundError: A file lacks a companion without which its records cannot be read.
    """
    facts = _facts_of(wanted)
    if facts is None:
        yield from files
        return
    files = list(files)
    file_of_path = {file.path: file for file in files}
    for file in files:
        if file.companion:
            yield file
            continue
        companions: list[InputFile] = []
        for companion in facts.companions:
            beside = _name_beside(file.path, companion, facts)
            if beside in file_of_path:
                companions.append(file_of_path[beside])
            elif companion in facts.needs:
                raise SourceNotFoundError(
                    f"{file.url}: its index {beside.rpartition('/')[2]!r} is not among the files of the source; a file "
                    f"of {file.format} is read by its index. Put it beside the file, or name the folder in data_files",
                    got=file.path,
                )
        yield replace(file, companions=tuple(companions))


def _facts_of(wanted: SourceType | None) -> FormatFacts | None:
    """Return the facts of a format whose files have companions; None for other types."""
    if wanted is None or wanted == "hub" or not FORMATS[wanted].companions:
        return None
    return FORMATS[wanted]


def _name_beside(path: str, companion: str, facts: FormatFacts) -> str:
    """Return the path of a companion of a data file."""
    folder, separator, name = path.rpartition("/")
    if not companion.startswith("."):
        return f"{folder}{separator}{companion}"
    for extension in facts.prose:
        if name.endswith(extension):
            name = name.removesuffix(extension)
            break
    return f"{folder}{separator}{name}{companion}"
