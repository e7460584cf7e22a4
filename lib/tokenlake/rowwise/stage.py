"""What a stage of a pipeline is, which may come after which, and which options no pipeline acts on.

And the rows of tokens that a stage keeps while they are drawn for the first time.
"""

from __future__ import annotations

import json
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from os.path import commonpath
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake._version import __version__
from tokenlake.arrays import mask_of, values
from tokenlake.cache.disk import default_folder
from tokenlake.cache.manager import ChunkWriter, DatasetCache, TreeCacheManager
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig, dump_yaml
from tokenlake.config.refusals import raise_problems, refused
from tokenlake.config.resolve import resolve_source, source_identity
from tokenlake.errors import ConfigError, InputChangedError, NotAvailableError
from tokenlake.etl.job import produced_by
from tokenlake.export.directory import Origin
from tokenlake.fingerprint import fingerprint
from tokenlake.json_text import dump_json
from tokenlake.rowwise.files import with_lines
from tokenlake.rowwise.loader import AsyncDataLoader
from tokenlake.rowwise.save import SavedShardedSource
from tokenlake.rowwise.shards import Numbered, Row, RowMeter
from tokenlake.rowwise.source import DerivedSource, NumberedSource, ShardedDataSource
from tokenlake.sources.hash_cache import FoundFile, HashCache, hash_files
from tokenlake.sources.inputs import FileStat, stat_token
from tokenlake.store.layout import CONFIG, TOKENIZER
from tokenlake.text.steps import sealed
from tokenlake.tokenizers.fingerprint import describe
from tokenlake.tokenizers.manager import LoadedTokenizer, TokenizerManager, content_hash

STAGES: Final = ("source", "tokenize", "mix", "pack", "save", "load")
_AFTER: Final = {"tokenize": ("mix", "pack", "load")}
"""A stage to those that may not come before it, else load alone: rows can be saved at any place, and packed before or
after a mix."""
_CHECKED_FIRST: Final = ("datasets", "source", "cache", "card", "ray")
"""Sections of which no stage is called, so that they are checked before the first one."""


_NO_SETTING: Final[Any] = {
    **dict.fromkeys(("load", "save", "cache", "ray", "observability", "default_tokenizer"), True),
    "datasets": {
        "__all__": {"data_files", "storage_options", "save_path", "cache_path", "tokenizer", "exclude"}
    },
    "tokenize": {"default_tokenizer", "num_workers", "engine", "cache_tokenized"},
}
"""Places and secrets, what changes no row, and tokenizers, which are described by what they are."""


@final
class PipelineContext:
    """What the stages of one pipeline know of it and of each other.

    Attributes:
        config: the configuration, with the sections that stages were called with in place of the pipeline's own.
        opened: name of a dataset to its rows, as :meth:`Pipeline.source` opened it.
        tokenizers: name of a source to its tokenizer, once :meth:`Pipeline.tokenize` was called.
        manager: loads tokenizers, each once.
        packed: whether rows are packed by a stage that was called.
        saved: what is to be written when the pipeline is built.
        push: uploads what was written; None: nothing is to be.
        stepped: tells the mixture how many rows a training step takes; None: nothing hangs on it.
        regrouped: whether rows were packed after they were mixed, so that a training step takes no fixed number.
        step, epoch: of training, as :meth:`update_step` and :meth:`update_epoch` were told; 0 at first.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.opened: dict[str, ShardedDataSource] = {}
        self.tokenizers: dict[str, LoadedTokenizer] = {}
        self.manager = TokenizerManager()
        self.packed = False
        self.saved: list[SavedShardedSource] = []
        self.push: Callable[[], str] | None = None
        self.stepped: Callable[[int], None] | None = None
        self.regrouped = False
        self.step = self.epoch = 0
        self._measured: dict[str, BaseStage] = {}
        self._recorded: dict[str, dict[str, Any]] = {}
        self._caches: dict[Path, TreeCacheManager] = {}

    @property
    def cache_manager(self) -> TreeCacheManager:
        """The cache that the section `cache` describes, which stages may use; empty where it is not enabled."""
        return self.cache_at(None)

    def cache_at(self, folder: str | Path | None) -> TreeCacheManager:
        """Return the cache in a folder, as the section `cache` describes it; None: in ``cache.cache_dir``."""
        section = self.config.cache
        where = Path(folder or section.cache_dir or default_folder() / "tokens")
        if where not in self._caches:
            self._caches[where] = TreeCacheManager(
                where,
                section.memory_cache_size if section.enabled else 0,
                section.disk_cache_expiry,
                section.compression,
                max_bytes=section.disk_cache_bytes,
                cache_type=section.cache_type if section.enabled else "memory",
            )
        return self._caches[where]

    @property
    def seed(self) -> int | None:
        """The pipeline's seed, None where none is set."""
        return self.config.seed

    @property
    def packing(self) -> bool:
        """Whether rows are packed, or ``pack.enabled`` says that they will be.

        A stage before packing asks when rows are drawn, because :meth:`Pipeline.pack` may be called after it.
        """
        return self.packed or self.config.pack.enabled

    def config_with_packing(self, packing: bool) -> PipelineConfig:
        """Return the configuration of a pipeline that packs, or of one that does not."""
        pack = self.config.pack.model_copy(update={"enabled": packing})
        return self.config.model_copy(update={"pack": pack})

    def dataset(self, name: str) -> DatasetConfig | None:
        """Return the configuration of a dataset; None for a source that a stage made, such as ``mixed``."""
        return self.config.get_dataset_by_name(name)

    def origin(self, name: str) -> Callable[[], Origin]:
        """Return what says of where a source's rows come from, as the stages so far have decided it."""
        config, names = self.config, [name] if name in self.opened else list(self.opened)
        tokenizers = {each: self.tokenizers[each] for each in names if each in self.tokenizers}
        kind = "packed" if self.packed else "tokens" if tokenizers else "rows"

        def origin() -> Origin:
            # As it was written, but for places and what decides no row.
            decided = config.model_dump(mode="json", exclude_unset=True, exclude=_NO_SETTING)
            decided["datasets"] = [each for each in decided["datasets"] if each.get("name") in names]
            inputs: list[dict[str, Any]] = []
            for each in names:
                # By what lies below the folder of all: no path of the machine.
                versions = self.opened[each].versions
                folder = commonpath([posixpath.dirname(path) for path, _, _ in versions]) if versions else ""
                for path, size, token in versions:
                    below = path[len(folder) :].lstrip("/")
                    inputs.append({"source": each, "path": below, "bytes": size, "version": token})
            described = {name: describe(loaded.files) for name, loaded in tokenizers.items()}
            made_of = {"config": decided, "tokenizer": described, "inputs": inputs}
            files = [(CONFIG, dump_yaml(config).encode())]
            for loaded in list(tokenizers.values())[:1]:  # rows of one stream have one
                files += [(f"{TOKENIZER}/{path}", data) for path, data in loaded.files.files.items()]
            return Origin(kind, made_of, beside=dict(files))

        return origin

    def get_tokenizer(self, name_or_path: str) -> LoadedTokenizer:
        """Return a tokenizer by its Hub id or path; it is loaded once.

        Raises:
            SourceNotFoundError, TokenizerError: it cannot be loaded.
        """
        return self.manager.get_tokenizer(name_or_path)

    def update_step(self, step: int) -> None:
        """Say which training step it is."""
        self.step = step

    def update_epoch(self, epoch: int) -> None:
        """Say which epoch it is."""
        self.epoch = epoch

    def record_metric(self, stage: str, key: str, value: Any) -> None:
        """Keep a figure under the name of a stage."""
        self._recorded.setdefault(stage, {})[key] = value

    def get_metrics(self) -> dict[str, dict[str, Any]]:
        """Return the figures of every stage so far, and those that were recorded, by the stage's name."""
        own = {name: stage.get_metrics() for name, stage in self._measured.items()}
        return {name: own.get(name, {}) | self._recorded.get(name, {}) for name in own | self._recorded}

    def measure(self, stage: BaseStage, made: Mapping[str, Any]) -> None:
        """Have the figures of a stage, and of what is drawn from what it made, in :meth:`get_metrics`."""
        stage.measure(made)
        self._measured[stage.name] = stage


class BaseStage(ABC):
    """A step from sources to sources, by the names of their datasets.

    A stage of your own defines `name` and `process`, and is given to :meth:`Pipeline.stage`. It should be lazy: make
    sources that wrap those it got, and read no rows.

    Attributes:
        config: whatever the stage was made with.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config

    # Made when asked for: a stage of a user may not call this class's __init__.
    @cached_property
    def _meter(self) -> RowMeter:
        return RowMeter()

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        return {}

    @property
    @abstractmethod
    def name(self) -> str:
        """What :meth:`Pipeline.get_stages` calls the stage."""

    @abstractmethod
    def process(self, data: dict[str, ShardedDataSource], context: PipelineContext) -> Mapping[str, Any]:
        """Return the new sources by name.

        Args:
            data: name to source.
            context: configuration and seed, and what earlier stages left for this one.
        """

    def validate_config(self, config: Any) -> bool:
        """Return whether the stage can be called with `config`; a stage of your own may look closer."""
        return True

    def get_metrics(self) -> dict[str, Any]:
        """Return the stage's figures: ``rows``, ``tokens`` and ``seconds`` of what was drawn from it so far.

        Seconds include those of the stages before it. Figures of :meth:`_update_metric` are added.
        """
        return {**self._meter.figures(), **self._metrics}

    def _update_metric(self, key: str, value: Any) -> None:
        """Set a figure of the stage's own."""
        self._metrics[key] = value

    def measure(self, made: Mapping[str, Any]) -> None:
        """Count from now on what is drawn from the sources that the stage made, and no stage before it."""
        for source in made.values():
            if isinstance(source, NumberedSource | AsyncDataLoader) and source.meter is None:
                source.meter = self._meter


def check_order(stage: str, applied: Sequence[str]) -> None:
    """Raise RuntimeError unless `stage` may follow the stages `applied`.

    Args:
        stage: one of :data:`STAGES`, ``build``, or the name of a stage of the user's own.
        applied: names of the stages so far, in order.
    """
    if stage == "source":
        if "source" in applied:
            raise RuntimeError("source() has already been called")
        return
    if "source" not in applied:
        raise RuntimeError("Call source() before other pipeline stages")
    if stage == "build":
        return
    if stage in STAGES and stage in applied:
        raise RuntimeError(f"{stage}() has already been called")
    before = next((name for name in _AFTER.get(stage, ("load",)) if name in applied), None)
    if before is not None:
        order = f"stages go {', '.join(STAGES)}; save may come earlier, and pack before mix"
        raise RuntimeError(f"{stage}() cannot come after {before}(); {order}")


def check_config(config: PipelineConfig, stage: str) -> None:
    """Check a configuration, and what a pipeline refuses in the section of a stage; first in those without one.

    Raises:
        ConfigError: it contradicts itself; the message lists everything.
        NotAvailableError: an option that a pipeline does not act on is set.
    """
    raise_problems(ConfigError, config.validate())
    sections = _CHECKED_FIRST if stage == "source" else (stage,)
    raise_problems(NotAvailableError, refused(config, "rows", sections))


_FORMAT: Final = 2
"""Of the kept rows; a new one makes all of them anew."""
_TOKENS: Final = {"input_ids": np.int32, "attention_mask": np.int32, "loss_mask": np.bool_}
_NUMBER, _REST, _INPUT, _ONES = "number", "rest", "input_ids", "attention_mask"
_CHUNK_TOKENS, _CHUNK_ROWS = 1 << 20, 4096
_LARGE_NUMBER: Final = re.compile("[0-9]{19}|1e999")
_EXACT: Final = (
    orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_ARROW: Final[Any] = pa


@final
class CachedShardedSource(DerivedSource):
    """Another source's shards, each kept in a cache once it was read from its first row to its last.

    The first reading passes rows on as they come and keeps them beside that, some thousand at a time. Later ones read
    the cache, at any row; where it has lost some, they go on with the source's. Rows and their numbers are the same
    either way, and where nothing can be written they come all the same.

    Rows hold arrays of tokens, and other fields that JSON has.
    """

    def __init__(self, source: ShardedDataSource, kept: DatasetCache, key: Callable[[int], str]) -> None:
        """Keep the rows of `source`.

        Args:
            key: of a shard (its place in ``shard_names``), asked whenever one is opened. It identifies everything that
                decides these rows.
        """
        self._source, self._kept, self._key = source, kept, key

    def _rows(self, index: int, row: int) -> Numbered:
        name, key, found = self.shard_names[index], self._key(index), False
        chunks = self._kept.chunks(key, row)
        if chunks is None:
            rows = self._source.open_shard_numbered(name, row)
            yield from rows if row else _keeping(rows, self._kept.writer(key))
            return
        for first, table in chunks:
            if table is None:
                yield from self._source.open_shard_numbered(name, max(first, row))
                return
            for number, kept in _read(table):
                if number >= row:
                    found = True
                    yield number, kept
        if row and not found:  # a row beyond the end is the source's to judge
            yield from self._source.open_shard_numbered(name, row)

    def __repr__(self) -> str:
        return f"CachedShardedSource({self._source!r})"


def cached(
    tokens: ShardedDataSource,
    rows: ShardedDataSource,
    name: str,
    context: PipelineContext,
    wanted: dict[str, Any],
) -> ShardedDataSource:
    """Return rows of tokens, which are kept where ``tokenize.cache_tokenized`` says so.

    Where it says nothing, they are kept if the dataset has a `cache_path`, or the section `cache` is written out, and
    everything that makes them can be recognized by its name (a lambda cannot): a pipeline fills no disk unasked.

    Args:
        tokens: what is kept.
        rows: what it is made of.
        wanted: what decides the tokens beside the configuration.

    Raises:
        ConfigError: they are to be kept, and something makes them that has no name, such as a lambda.
    """
    dataset, section = context.dataset(name), context.config.cache
    asked = context.config.tokenize.cache_tokenized
    if asked is False or dataset is None or not dataset.cache_enabled or not section.enabled:
        return tokens
    if not (asked or dataset.cache_path or section.keeps_tokens):
        return tokens
    try:
        if rows is not context.opened.get(name):
            raise ConfigError("a stage of your own makes them")
        sealed(resolve_source(context.config, dataset).texts)
    except ConfigError as error:
        if not asked:
            return tokens
        why = f"what makes them has no name to recognize it by: {error}. Leave it out, or save() the rows"
        raise ConfigError(f"tokenize.cache_tokenized: the rows of {name!r} cannot be kept: {why}") from error
    key = cache(partial(_key, rows, dataset, context, wanted))
    # Asked when rows are drawn, because packing may be asked for later.
    kept = DatasetCache(context.cache_at(dataset.cache_path))
    return CachedShardedSource(tokens, kept, lambda index: key(index, context.packing))


def _input(version: tuple[str, int, str], hash_fn: str) -> list[Any]:
    """Return what tells that an input is the same: its bytes, its path and its state there, or both."""
    path, size, token = version
    content = token
    if hash_fn != "path" and token.startswith("stat:"):
        with HashCache() as known:  # a file that is remembered is not read again
            found = FileStat.of(path)
            [(_, sha256)] = hash_files([FoundFile(path, path, found)], 1, known, None)
        if stat_token(found) != token:
            raise InputChangedError(
                f"{path}: the file has changed since it was listed; open the source again"
            )
        content = f"sha256:{sha256}"
    if hash_fn == "content":
        return [size, content]
    return [path, size, token, content if hash_fn == "combined" else ""]


def _key(
    rows: ShardedDataSource,
    dataset: DatasetConfig,
    context: PipelineContext,
    wanted: dict[str, Any],
    index: int,
    packing: bool,
) -> str:
    """Return a name for everything that decides the tokens of the shard at `index`."""
    # How many rows a shard gives hangs on those before it where a number of rows is asked for.
    versions = rows.versions[: index + 1] if dataset.num_rows else [rows.versions[index]]
    source = resolve_source(context.config_with_packing(packing), with_lines(dataset))
    chosen = context.tokenizers[source.name]
    return fingerprint(
        {
            "format": _FORMAT,
            "version": __version__,
            "source": source_identity(replace(source, texts=sealed(source.texts))),
            "num_rows": source.num_rows,
            "inputs": [_input(version, context.config.cache.hash_fn) for version in versions],
            # By its files and who runs them: to ask it for its ids, as its fingerprint does, takes 0.4 s.
            "tokenizer": [content_hash(chosen.files), produced_by("tokenizers")["tokenizers"]],
            "options": chosen.config.model_dump(mode="json", exclude={"name_or_path"}),
            "packing": packing,
            "eos": context.config.pack.eos_token_id if packing else None,
            **wanted,
        }
    )[:32]


def _read(table: pa.Table) -> Numbered:
    columns: Any = table
    names = [name for name in _TOKENS if name in columns.column_names]
    tokens = {name: _arrays(columns, name) for name in names}
    rows = zip(columns[_NUMBER].to_pylist(), columns[_REST].to_pylist(), strict=True)
    for at, (number, rest) in enumerate(rows):
        # orjson makes doubles of integers beyond 64 bits.
        others = json.loads(rest) if _LARGE_NUMBER.search(rest) else orjson.loads(rest)
        yield number, others | {name: arrays(at) for name, arrays in tokens.items()}


def _arrays(table: Any, name: str) -> Callable[[int], Any]:
    """Return what makes the tokens of a row; a mask that is one everywhere was not written."""
    ones = pa.types.is_null(table.schema.field(name).type)
    written = table[_INPUT if ones else name].chunk(0)
    offsets = values(written.offsets).tolist()
    if ones:
        return lambda at: np.ones(offsets[at + 1] - offsets[at], _TOKENS[name])
    tokens = values(written.values)
    return lambda at: tokens[offsets[at] : offsets[at + 1]].copy()


def _keeping(rows: Numbered, writer: ChunkWriter) -> Numbered:
    """Yield rows, and keep them beside that, some at a time; rows of one number stay together."""
    held, tokens, kept = list[tuple[int, Row]](), 0, True
    for number, row in rows:
        if held and number != held[-1][0]:
            if tokens >= _CHUNK_TOKENS or len(held) >= _CHUNK_ROWS or _fields(row) != _fields(held[0][1]):
                writer.add(held[0][0], _table(held))
                held, tokens = [], 0
        elif held and _fields(row) != _fields(held[0][1]):
            kept = False  # rows of one number that are no table: these are not kept
        if kept:
            held.append((number, row))
            tokens += len(row.get("input_ids", ()))
        yield number, row
    if held and kept:
        writer.add(held[0][0], _table(held))
    if kept:
        writer.finish()


def _fields(row: Row) -> list[str]:
    return [name for name in _TOKENS if name in row]


def _table(held: Sequence[tuple[int, Row]]) -> pa.Table:
    """Return rows as a table: their numbers, their tokens, and a JSON text of all else."""
    columns: dict[str, Any] = {_NUMBER: pa.array([number for number, _ in held], pa.int64())}
    try:
        others = [{name: value for name, value in row.items() if name not in _TOKENS} for _, row in held]
        columns[_REST] = [dump_json(rest, option=_EXACT, keeps_infinity=True).decode() for rest in others]
    except TypeError as error:
        why = f"a kept field holds what JSON does not have ({error}); do not keep it, or leave cache_tokenized out"
        raise ConfigError(f"tokenize.cache_tokenized: {why}") from error
    lengths = {name: [len(row[name]) for _, row in held] for name in _fields(held[0][1])}
    for name, own in lengths.items():
        tokens = np.concatenate([np.asarray(row[name], _TOKENS[name]) for _, row in held])
        if name == _ONES and own == lengths.get(_INPUT) and tokens.all():
            columns[name] = pa.nulls(len(held))
            continue
        # `pa.array` of an array would import pandas where that is installed.
        plain: list[Any] = [np.cumsum([0, *own], dtype=np.int32), tokens]
        for place, each in enumerate(plain):
            whole = [None, _ARROW.py_buffer(each)]
            numbers = each.dtype != np.bool_
            plain[place] = (
                _ARROW.Array.from_buffers(pa.int32(), len(each), whole) if numbers else mask_of(each)
            )
        columns[name] = _ARROW.ListArray.from_arrays(*plain)
    return _ARROW.table(columns)
