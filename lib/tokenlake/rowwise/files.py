"""Sources whose shards are files, of any format, local or at a URL or on the Hub."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self, TypedDict, Unpack, final

from tokenlake.base.checks import expected, whole_number
from tokenlake.base.threads import in_order
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.formats import FORMATS, Format
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.refusals import raise_problems, refused
from tokenlake.config.resolve import resolve_source
from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.stages import SourceStageConfig
from tokenlake.errors import ConfigError, NotAvailableError, NotFoundError, SourceError, SourceNotFoundError
from tokenlake.etl.export.flat_manifest import FlatManifest
from tokenlake.etl.sources.file_stat import state
from tokenlake.etl.sources.formats import COMPRESSION_ENDINGS, format_of
from tokenlake.etl.sources.input_errors import damaged
from tokenlake.etl.sources.inputs import InputFile, is_url
from tokenlake.etl.sources.listing import each_once, list_inputs, require_use_of_options, spelled_out
from tokenlake.etl.sources.patterns import expand
from tokenlake.etl.sources.split_choice import Survey
from tokenlake.etl.sources.where import Predicate
from tokenlake.etl.text.steps import open_chain
from tokenlake.etl.text.transform import ChainedTransform
from tokenlake.rowwise.file_rows import FileRows, RowIndexes
from tokenlake.rowwise.shards import Numbered, ShardInfo, limited, section
from tokenlake.rowwise.source import NumberedSource, ShardedDataSource, TransformedShardedSource

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, glob, directory or URL, or several of them."""


@final
class DatasetType(StrEnum):
    """What a dataset's files hold."""

    JSON = "json"
    PARQUET = "parquet"
    CSV = "csv"
    ARROW = "arrow"
    HF = "huggingface"
    TSV = "tsv"
    TXT = "txt"

    @classmethod
    def from_string(cls, value: str) -> DatasetType | str:
        """Return the type of that name, whatever its case; else the text itself."""
        return next((kind for kind in cls if kind == value.lower()), value)

    @classmethod
    def infer_from_path(cls, path: str) -> DatasetType | None:
        """Return the type that the extension of a file says, compressed or not; None if it says none."""
        found: Format | None = format_of(path)
        renamed = {"jsonl": "json", "text": "txt"}
        return None if found is None else cls(renamed.get(found, found))


class ReadOptions(TypedDict, total=False):
    """Keywords of every source of files.

    Attributes:
        on_bad_record: ``fail`` (the default: the first bad record is an error) or ``quarantine`` (bad
            records are left out; their numbers stay unused).
        where: one SQL predicate (DuckDB) that rows must meet, such as ``"lang = 'en'"``.
        max_record_bytes: a longer record is a bad one; bytes, or text like "64MB". 256 MB by default.
        num_rows: read at most this many records, good or bad, in the order of the shards.
    """

    on_bad_record: Literal["fail", "quarantine"]
    where: str | None
    max_record_bytes: int | str
    num_rows: int | None


class FileBacked(NumberedSource):
    """A source that reads its rows from files; a shard is a file, its name the path below the root of the listing.

    A shard also opens by the whole path or URL of its file.

    All of these take, after the arguments of their own, the keywords of :class:`ReadOptions`. Opening a source lists
    its files; it reads none. Of a folder whose names say splits the files of train are read; a glob names any files,
    and :func:`create_source` takes `split`.
    """

    _kind: str | None = None

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files."""
        self._open(_resolved(self._kind, data_files, storage_options, **options))

    @classmethod
    def over(cls, source: ResolvedSource, files: Sequence[InputFile]) -> Self:
        """Return a source of files that were listed already."""
        made = cls.__new__(cls)
        made._open(source, files)
        return made

    def _open(
        self,
        source: ResolvedSource,
        files: Sequence[InputFile] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._wanted, indexes = source, RowIndexes()
        wanted = None if columns is None else tuple(dict.fromkeys(columns))
        listed = list_inputs(source, hashed=False) if files is None else files
        self._files = [FileRows(file, source, wanted, indexes) for file in listed]
        self._names = tuple(file.path for file in listed)
        self._left = [source.num_rows]  # rows that may be read before each shard; grows with what is counted

    @property
    def every_row(self) -> bool:
        return self._wanted.on_bad_record == "fail" and self._wanted.where is None

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return [(each.file.url, each.file.size, each.file.token) for each in self._files]

    def _index(self, name: str) -> int:
        """Return the place of a shard, by its name or by the whole path or URL of its file."""
        whole = name if is_url(name) else os.path.abspath(os.path.expanduser(name))  # noqa: PTH100, PTH111 (keeps symlinks)
        place = None if name in self._places else self._whole.get(whole)
        return super()._index(name) if place is None else place

    @cached_property
    def _whole(self) -> dict[str, int]:
        return {each.file.url: place for place, each in enumerate(self._files)}

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        index, most = self._index(shard_name), self._left[0]
        file, rows = self._files[index].file, self._files[index].known
        if most is not None:  # what all shards together may give is asked of those before this one
            rows = limited([each.known for each in self._files[: index + 1]], most)
        return ShardInfo(
            name=self._names[index],
            index=index,
            url=file.url,
            format=file.format,
            compression=file.compression,
            bytes=file.size,
            rows=rows,
        )

    @property
    def pad_token_id(self) -> int | None:
        """What rows of tokens are filled up with, as the manifest of their flat directory knows it; else None."""
        with suppress(NotFoundError):
            folders = {Path(each.file.url).parent for each in self._files if each.file.is_local}
            found = {FlatManifest.of(folder).pad_token_id for folder in folders}
            return found.pop() if len(found) == 1 else None
        return None

    def count_rows(self, shard_name: str) -> int:
        """Return how many rows a shard has, good or bad; reads it where nothing else tells."""
        return self._files[self._index(shard_name)].count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._wanted.data_files)!r}, shards={self.num_shards()})"

    def _rows(self, index: int, row: int) -> Numbered:
        while len(self._left) <= index:  # `num_rows` leaves the rows from this number on out
            left = self._left[-1]
            self._left.append(left and left - self._files[len(self._left) - 1].count(left))
        yield from self._files[index].rows(row, self._left[index])


@final
class ParquetShardedSource(FileBacked):
    """Parquet files. Opening at a row decodes the row group that holds it and those after, nothing before."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files; `columns`: the only ones to read, None for all."""
        if columns is not None and (isinstance(columns, str) or not columns):
            raise expected("columns", columns, "a list of names, or None for all columns")
        self._open(_resolved("parquet", data_files, storage_options, **options), columns=columns)


@final
class JsonShardedSource(FileBacked):
    """JSON Lines, or JSON arrays of objects."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        jsonl: bool = True,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files.

        Args:
            jsonl: files have an object on every line; else the beginning of each tells whether it has, or is an
                array of objects.
        """
        self._open(_resolved("jsonl" if jsonl else "json", data_files, storage_options, **options))


@final
class ArrowShardedSource(FileBacked):
    """Arrow IPC files and streams."""

    _kind = "arrow"


@final
class CsvShardedSource(FileBacked):
    """CSV with a header line; every value is text."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        delimiter: str = ",",
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files; `delimiter`: between cells, where the comma means a tab in ``.tsv`` files."""
        cells = None if delimiter == "," else delimiter
        self._open(_resolved("csv", data_files, storage_options, {"delimiter": cells}, **options))


@final
class TextShardedSource(FileBacked):
    """Text files: every line that is not empty is a row, or every file (``text_mode="document"``)."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        text_field: str = "text",
        *,
        text_mode: Literal["lines", "document"] = "lines",
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files; `text_field`: the field of a row that gets the text, without its end of line."""
        more = {"content_field": text_field, "text_mode": text_mode}
        self._open(_resolved("txt", data_files, storage_options, more, **options))


@final
class HuggingFaceShardedSource(FileBacked):
    """A dataset on the Hub, at the commit that its branch points to when it is opened."""

    def __init__(
        self,
        dataset_name: str,
        split: str = "train",
        subset: str | None = None,
        streaming: bool = True,
        cache_dir: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files of one split.

        Args:
            streaming: read over the network, and store nothing; else download the files first.
            cache_dir: where downloaded files are kept; None for the cache of `huggingface_hub`.
        """
        if streaming and cache_dir is not None:
            raise expected(
                "cache_dir", cache_dir, "None with streaming=True; set streaming=False to download"
            )
        source = _resolved("hf", dataset_name, None, {"split": split, "subset": subset}, **options)
        files = list_inputs(source, hashed=False)
        self._open(source, files if streaming else downloaded(files, source.storage_options, cache_dir))


@final
class FilesShardedSource(FileBacked):
    """Files of any format, each read as its extension says."""


_ENDINGS: Final = tuple(
    end for each in FORMATS.values() for end in (*each.extensions, *each.prose, *COMPRESSION_ENDINGS.values())
)
_HUB_ID: Final = re.compile(r"[\w-]+/[\w.-]+(@[\w./-]+)?")

_CLASSES: Final[dict[str, type[FileBacked]]] = {
    "jsonl": JsonShardedSource,
    "json": JsonShardedSource,
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "csv": CsvShardedSource,
    "tsv": CsvShardedSource,
    "text": TextShardedSource,
}


def create_source(config: DatasetConfig | Mapping[str, Any]) -> ShardedDataSource:
    """Return the rows of a dataset as it is configured: `format_callback`, then `format_fields`, then `transforms`.

    Its class is that of the files' format, :class:`FilesShardedSource` where they have several; where rows are
    changed, a :class:`TransformedShardedSource` over it. An entry ``org/name`` that is no file of this machine is asked
    for on the Hub. Each line of a text file that is not empty is a row, whose `content_field` holds the text; with
    ``text_mode="document"`` each file is one. Options of the tokenizer do not affect a source of rows.

    Args:
        config: a DatasetConfig, or a mapping of its keys.

    Raises:
        ConfigError: a key or value is not allowed.
        NotAvailableError: an option that rows do not follow in this release.
        SourceNotFoundError: an entry of `data_files` matches nothing.
    """
    pipeline = PipelineConfig(datasets=(section(DatasetConfig, config, "create_source"),))
    # What only builds and pipelines act on is refused.
    raise_problems(NotAvailableError, refused(pipeline, "source", ("datasets",)))
    return open_dataset(pipeline, pipeline.datasets[0])


def open_dataset(config: PipelineConfig, dataset: DatasetConfig) -> ShardedDataSource:
    """Return the rows of a dataset of a checked configuration; raises as :func:`create_source`.

    Where the configuration or its section `source` does not stream, files of the Hub are downloaded first.
    """
    # A function that no other process could find is fine here.
    callback = None if isinstance(dataset.format_callback, str) else dataset.format_callback
    if callback is not None:
        dataset = dataset.model_copy(update={"format_callback": None})
    source = resolve_source(config, with_lines(dataset))
    try:
        files = list_inputs(source, hashed=False)
    except SourceNotFoundError as missing:  # an entry ``org/name`` may be the id of a dataset on the Hub
        ids = [_HUB_ID.fullmatch(entry) and not entry.endswith(_ENDINGS) for entry in source.data_files]
        if source.type is not None or not all(ids):
            raise
        source = replace(source, type="hub")
        try:
            files = list_inputs(source, hashed=False)
        except SourceError as error:
            raise SourceNotFoundError(f"{missing} Nor is it a dataset that the Hub gives: {error}") from error
    # The default of `text_mode` is fine beside files of any format.
    has_lines = dataset.text_mode == "lines" and "text_mode" in dataset.model_fields_set
    require_use_of_options(
        source.name, files, delimiter=source.delimiter, text_mode=dataset.text_mode if has_lines else None
    )
    kinds = {_CLASSES[file.format] for file in files}
    kind = kinds.pop() if len(kinds) == 1 else FilesShardedSource
    if source.type == "hub":
        kind = HuggingFaceShardedSource
        files = (
            files
            if config.streaming and config.source.streaming
            else downloaded(files, source.storage_options)
        )
    rows = kind.over(source, files)
    steps = [*([] if callback is None else [callback]), *open_chain(source.texts).steps]
    if not steps:
        return rows
    return TransformedShardedSource(rows, ChainedTransform(steps), on_bad_record=source.on_bad_record)


def with_lines(dataset: DatasetConfig) -> DatasetConfig:
    """Return a dataset whose text files are read line by line, unless it sets `text_mode`.

    That is the default of rows. The default of a build is one document for each file.
    """
    if "text_mode" in dataset.model_fields_set:
        return dataset
    return dataset.model_copy(update={"text_mode": "lines"})


def expand_data_files(data_files: DataFiles, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that entries stand for: absolute paths, or URLs.

    In the order of the entries, sorted within each, every file once. A directory stands for the files in it
    and below whose extensions are known.

    Raises:
        SourceNotFoundError: an entry matches nothing; the message names near matches.
        ConfigError: an argument is not allowed.
    """
    source = _resolved(None, data_files, storage_options)
    found: dict[str, None] = {}
    for entry in spelled_out(source.data_files):
        if is_url(entry):
            files = list_inputs(replace(source, data_files=(entry,)), hashed=False, select=Survey())
            found.update(dict.fromkeys(file.url for file in files))
        else:
            found.update(dict.fromkeys(sorted(expand(entry, None)[1])))
    once = set(each_once(path for path in found if not is_url(path)))
    return [path for path in found if is_url(path) or path in once]


def _resolved(
    kind: str | None,
    data_files: DataFiles,
    storage_options: Mapping[str, Any] | None,
    more: Mapping[str, Any] | None = None,
    *,
    on_bad_record: str = "fail",
    where: str | None = None,
    max_record_bytes: int | str = "256MB",
    num_rows: int | None = None,
) -> ResolvedSource:
    """Return what reading needs to know of a source; ConfigError if an argument is not allowed."""
    if where is not None:
        Predicate(where)  # what is wrong with it is said now, not at the first row
    if storage_options is not None and not isinstance(storage_options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError("storage_options: must be a mapping of option to value (yours is not shown)")
    fields = {"name": "rows", "type": kind, "data_files": data_files or [], "where": where, **(more or {})}
    dataset = with_lines(section(DatasetConfig, {**fields, "on_bad_record": on_bad_record}))
    stage = section(SourceStageConfig, {"max_record_bytes": max_record_bytes})
    source = resolve_source(PipelineConfig(datasets=(dataset,), source=stage), dataset)
    return replace(
        source,
        num_rows=None if num_rows is None else whole_number("num_rows", num_rows, 0),
        storage_options=dict(storage_options or {}),
    )


def downloaded(
    files: Iterable[InputFile],
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
) -> list[InputFile]:
    """Return files of the Hub as files of this machine: identity stays, `url` and `stat` are those of the cache.

    What the cache of `huggingface_hub` has already is not downloaded again.

    Args:
        storage_options: of the source: its own token and endpoint.
        cache_dir: where the files are kept; None for the cache of `huggingface_hub`.

    Raises:
        DamagedFileError: what came is not what the plan's hash says, or the cache is damaged.
        SourceError: a download failed.
    """
    from tokenlake.etl.sources.hub_client import HubClient  # other sources start without the Hub's parts
    from tokenlake.etl.sources.hub_id import parse_url  # other sources start without the Hub's parts

    client = HubClient(storage_options)

    def local(file: InputFile) -> InputFile:
        path = client.download(*parse_url(file.url), cache_dir)
        before = path.stat()
        if file.token.startswith("git:"):
            # Git hashes a header with the length before the content; such files are small.
            data = path.read_bytes()
            found = f"git:{hashlib.sha1(b'blob %d' % len(data) + bytes(1) + data).hexdigest()}"
        else:
            with path.open("rb") as stream:
                found = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        if before.st_size != file.size or found != file.token:
            raise damaged(
                file,
                f"its copy {str(path)!r} has {before.st_size} bytes and {found}, planned were {file.size} and "
                f"{file.token}; delete the copy and run again",
            )
        return replace(file, url=str(path), stat=state(before))

    return list(in_order(local, list(files), _DOWNLOADS))


_DOWNLOADS: Final = 4  # at a time
