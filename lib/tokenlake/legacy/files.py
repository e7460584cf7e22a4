"""Files of the older interface: ``json`` may mean an array or lines, and the file itself says which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tokenlake.config.resolve import resolve_dataset
from tokenlake.sources.formats import inner_extension
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.opening import opened
from tokenlake.sources.sharded.filebacked import FilesShardedSource, HuggingFaceShardedSource
from tokenlake.sources.sharded.files import FileShards
from tokenlake.sources.stream import ByteStream

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig

_SPACE: Final = b" \t\r\n\xef\xbb\xbf"  # white space of JSON, and a byte order mark
_STEP: Final = 1 << 16


def open_files(
    dataset: DatasetConfig, *, kinds_by_content: bool
) -> FilesShardedSource | HuggingFaceShardedSource:
    """Return the rows of a dataset's files, as they are stored.

    Args:
        kinds_by_content: files of the format ``json`` may be JSON Lines; their beginnings are looked at.

    Raises:
        ConfigError, SourceNotFoundError: as :func:`tokenlake.sources.listing.list_inputs`.
    """
    source = resolve_dataset(dataset)
    files = list_inputs(source, hashed=False)
    if kinds_by_content:
        files = [_by_content(file, source.storage_options) for file in files]
    kind = HuggingFaceShardedSource if source.type == "hub" else FilesShardedSource
    return kind.over(FileShards(source, files))


def _by_content(file: InputFile, options: Mapping[str, Any]) -> InputFile:
    if file.format != "json":
        return file
    lines = inner_extension(file.path) in (".jsonl", ".ndjson") or _first(file, options) == b"{"
    return replace(file, format="jsonl") if lines else file


def _first(file: InputFile, options: Mapping[str, Any]) -> bytes:
    """Return the first byte that is not white space, b"" if there is none."""
    with opened(file, options) as data:
        stream = ByteStream(data)
        while some := stream.read(_STEP):
            if found := some.lstrip(_SPACE):
                return found[:1]
    return b""
