"""Files that belong to data files, such as an index of records.

They also hold borders of documents, or the description of a folder.

``a.idx`` belongs to ``a.bin`` of Megatron, ``index.json`` to all chunks of litdata in
its folder. Such a file is an input like any other: it is listed, hashed and recorded.
It has no records of its own, and every data file that it belongs to has it as a
companion, whose content is a part of the identity of its units.
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


def companions_beside(paths: Iterable[str], source_type: SourceType | None) -> set[str]:
    """Return the companions of local files that exist.

    With them a data file may be named alone in `data_files`.

    Args:
        paths: Absolute paths of the files.
        source_type: Type that the source sets; other types than those of ids have no
            companions.
    """
    existing: set[str] = set()
    for path in possible_companions(paths, source_type):
        if os.path.isfile(path):  # noqa: PTH113 - no Path per file
            existing.add(path)
    return existing


def has_companions(source_type: SourceType | None) -> bool:
    """Return True if files of a type may have companions."""
    return _facts_of(source_type) is not None


def possible_companions(
    paths: Iterable[str], source_type: SourceType | None
) -> set[str]:
    """Return the paths that companions of files have, if there are any.

    Args:
        paths: Paths of the files, of this machine or of a storage.
        source_type: Type that the source sets; other types than those of ids have no
            companions.
    """
    companion_paths: set[str] = set()
    facts = _facts_of(source_type)
    if facts is None:
        return companion_paths
    # Many files of a folder share a companion.
    for path in paths:
        if not facts.companion(path):
            for companion in facts.companions:
                companion_paths.add(_name_beside(path, companion, facts))
    return companion_paths


def choosing_with_companions(select: Select, source_type: SourceType | None) -> Select:
    """Return a function that chooses files as `select` does, and their companions.

    The names of companions say no split: ``index.json`` belongs to all chosen files of
    its folder.

    Args:
        select: Function that chooses the files of an entry.
        source_type: Type that the source sets.
    """
    facts = _facts_of(source_type)
    if facts is None:
        return select

    def choose(entry: FilesEntry, source: ResolvedSource) -> Choice:
        # The companions are put aside, and only data files are chosen. A folder of
        # companions alone has none, which `select` reports.
        companion_paths = {path for path in entry.paths if facts.companion(path)}
        data_paths = [path for path in entry.paths if path not in companion_paths]
        if not companion_paths or not data_paths:
            return select(entry, source)
        choice = select(replace(entry, paths=data_paths), source)
        chosen_companions: set[str] = set()
        for path in choice.paths:
            for companion in facts.companions:
                companion_path = _name_beside(path, companion, facts)
                if companion_path in companion_paths:
                    chosen_companions.add(companion_path)
        return replace(choice, paths=[*choice.paths, *sorted(chosen_companions)])

    return choose


def with_companions(
    files: Iterable[InputFile], source_type: SourceType | None
) -> Iterator[InputFile]:
    """Yield files in their order, each data file with its companions.

    Args:
        files: Files of a listing.
        source_type: Type that the source sets.

    Raises:
        SourceNotFoundError: A file lacks a companion without which its records cannot
            be read.
    """
    facts = _facts_of(source_type)
    if facts is None:
        yield from files
        return
    files = list(files)
    file_of_path = {file.path: file for file in files}
    # A source may name a companion itself. It is listed as a file without records.
    for file in files:
        if file.companion:
            yield file
            continue
        companions: list[InputFile] = []
        for companion in facts.companions:
            companion_path = _name_beside(file.path, companion, facts)
            if companion_path in file_of_path:
                companions.append(file_of_path[companion_path])
            elif companion in facts.needs:
                companion_name = companion_path.rpartition("/")[2]
                raise SourceNotFoundError(
                    f"{file.url}: its index {companion_name!r} is not among the files of the source; "
                    f"a file of {file.format} is read by its index. Put it beside the file, or name the folder in "
                    "data_files",
                    got=file.path,
                )
        yield replace(file, companions=tuple(companions))


def _facts_of(source_type: SourceType | None) -> FormatFacts | None:
    """Return the facts of a format with companions; None for other types."""
    if source_type is None or source_type == "hub":
        return None
    facts = FORMATS[source_type]
    return facts if facts.companions else None


def _name_beside(path: str, companion: str, format_facts: FormatFacts) -> str:
    """Return the path of a companion of a data file."""
    folder, separator, file_name = path.rpartition("/")
    # A companion is named by its folder (``index.json``), or by its data file (``.idx``
    # beside ``.bin``).
    if not companion.startswith("."):
        return f"{folder}{separator}{companion}"
    for extension in format_facts.prose:
        if file_name.endswith(extension):
            file_name = file_name.removesuffix(extension)
            break
    return f"{folder}{separator}{file_name}{companion}"
