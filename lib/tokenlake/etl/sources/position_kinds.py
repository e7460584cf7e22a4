"""The meaning of a document's position in its file.

It follows from the file's name and the configuration of its source.

A manifest records positions as numbers. Files of lines have the byte offset at which
the line begins, all others the row index, both from 0:

    a.jsonl:1200      the line that begins at byte 1,200 of the decompressed file
    a.parquet:1200    the row 1,200
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokenlake.config.formats import FORMATS
from tokenlake.etl.sources.formats import format_of
from tokenlake.runtime.store.manifest import Manifest

BYTE_OFFSET: Final = "byte offset"
ROW: Final = "row"


def position_kind(path: str, source: Mapping[str, Any]) -> str:
    """Return the meaning of positions in a file: ``byte offset`` or ``row``.

    It is "" where the manifest does not say.

    A ``.json`` file may hold an array or lines, and only its bytes tell.

    Args:
        path: Path of the input file in the manifest.
        source: Configuration of the file's source in the manifest.
    """
    # The type that the source sets counts before the extension, as in a listing.
    source_type = source.get("type")
    file_format = source_type if source_type in FORMATS else format_of(path)
    if file_format is None or file_format == "json":
        return ""
    is_document = file_format == "text" and source.get("text_mode") != "lines"
    if FORMATS[file_format].layout == "lines" and not is_document:
        return BYTE_OFFSET
    return ROW


def place_of(path: str, position: int, line: int | None, kind: str) -> str:
    """Return the place of a record, for people and editors.

    It is ``a.jsonl:5`` for line 5 (from 1) of a file whose lines were counted, and
    ``a.parquet:5`` for row 5 (from 0) of a file of rows. A record of several lines has
    the first of them. Other places name the position: ``a.jsonl at byte offset 1200``.

    Args:
        path: Path of the input file.
        position: Position of the record.
        line: Line number of the record; None if it is not known.
        kind: Meaning of the position, from :func:`position_kind`.
    """
    if line is not None:
        return f"{path}:{line}"
    if kind == ROW:
        return f"{path}:{position}"
    return f"{path} at {kind or 'position'} {position}"


def position_kinds_of(manifest: Manifest) -> dict[int, str]:
    """Return the meaning of positions in each input file of a version, by file id."""
    sources: Mapping[str, Any] = manifest.config.get("sources", {})
    kinds: dict[int, str] = {}
    for entry in manifest.inputs:
        kinds[entry.file_id] = position_kind(entry.path, sources.get(entry.source, {}))
    return kinds
