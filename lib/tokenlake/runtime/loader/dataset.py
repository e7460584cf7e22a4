"""A split of a stored version: rows by number, manifest and tokenizer.

It is opened by the path or URL of the version.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self, final, overload

import numpy as np
import pyarrow as pa

from tokenlake.base import numbers
from tokenlake.base.arrays import Int64
from tokenlake.base.markup import named_facts, one_line
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    StoreError,
    TokenlakeError,
)
from tokenlake.runtime.loader.batch import Assembler, Batch, BatchShape, pad_id_of
from tokenlake.runtime.loader.columns import check_columns
from tokenlake.runtime.loader.hf_arrow import to_hf
from tokenlake.runtime.reading.file_hashes import verified_bytes
from tokenlake.runtime.reading.group_cache import GroupCache
from tokenlake.runtime.reading.packed import PackedGroup
from tokenlake.runtime.reading.stored_columns import stored_schema
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.layout import TOKENIZER, Layout
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.tokenizer_guard.loading import open_tokenizer

_CACHE_BYTES: Final = 64 << 20
"""Memory for decoded row groups of a dataset."""

_NAMES_SHOWN: Final = 20
"""Datasets that a message names."""


@final
class Dataset:
    """One split of a committed version.

    Opening it reads the manifest and no other file. Several threads may use it. Up to
    64 MiB of decoded rows are kept in memory.

    Args:
        store: Store that holds the version.
        manifest: Manifest of the version.
        split: Name of the split.

    Raises:
        ConfigError: The version does not have this split.

    Example:
        >>> import tokenlake as tl
        >>> dataset = tl.open("artifacts/llama2-2048@v3")
        >>> len(dataset), dataset.seq_length, dataset.columns
        (1168, 64, ('input_ids', 'segment_ids', 'positions', 'loss_mask'))
        >>> dataset[17]["input_ids"].shape
        (64,)
        >>> dataset[10:20]["segment_ids"].shape
        (10, 64)
    """

    def __init__(self, store: ReadStore, manifest: Manifest, split: str) -> None:
        # The cache refers to the rows and not to the dataset, which is collected when
        # it is forgotten.
        rows = StoredRows(store, manifest, split)
        self._store = store
        self._rows = rows
        self._cache: GroupCache[int, PackedGroup] = GroupCache(
            _CACHE_BYTES, lambda group: rows.packed(group, loss_mask=rows.has_loss_mask)
        )

    @property
    def name(self) -> str:
        """Name of the version and split, such as ``llama2-2048@v3/train``."""
        return self._rows.name

    @property
    def manifest(self) -> Manifest:
        """Manifest of the version."""
        return self._rows.manifest

    @property
    def split(self) -> str:
        """Name of the split."""
        return self._rows.split

    @property
    def store(self) -> ReadStore:
        """Store that holds the version."""
        return self._store

    @property
    def rows(self) -> StoredRows:
        """Rows by row group, as they are stored."""
        return self._rows

    @property
    def kind(self) -> str:
        """Kind of the rows: ``packed``, ``tokens`` or ``preference``."""
        return self.manifest.kind

    @property
    def seq_length(self) -> int:
        """Number of ids of a row; ConfigError if rows have many lengths."""
        self._require_packed("seq_length")
        return self.manifest.width

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, added tokens included: rows of an embedding.

        It is the largest id of the tokenizer plus one. It is read from the manifest and
        needs no package.

        Raises:
            NotFoundError: The manifest does not name a tokenizer.
            ConfigError: The sources have tokenizers of different sizes.
        """
        # Sources of a mixture may have several tokenizers; an embedding has one size.
        sizes: dict[str, int] = {}
        for source, description in self.manifest.tokenizer.items():
            if description.get("vocab_size"):
                sizes[source] = int(description["vocab_size"])
        where = f"{self.manifest.dataset}@v{self.manifest.version}"
        if not sizes:
            raise NotFoundError(
                f"{where} does not record the size of its vocabulary; expected a tokenizer in its manifest"
            )
        if len(set(sizes.values())) > 1:
            listed = ", ".join(
                f"{source} {size:,}" for source, size in sorted(sizes.items())
            )
            raise ConfigError(
                f"{where}: its sources have vocabularies of different sizes ({listed}); expected one size"
            )
        return next(iter(sizes.values()))

    @property
    def columns(self) -> tuple[str, ...]:
        """Default columns of :meth:`take`."""
        return check_columns(None)

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the stored rows. For packed rows no file is opened."""
        # The columns of packed rows follow from the manifest.
        if self.kind == "packed":
            return stored_schema(self.manifest)
        if not len(self):
            return pa.schema([])
        return self._rows.read(0).schema

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer that is stored with the version, a ``tokenizers.Tokenizer``.

        A tokenizer of an unusual form, which might take unlimited time or memory, runs
        in a process with limits. It is a
        :class:`~tokenlake.runtime.tokenizer_guard.process.BoundedTokenizer` then, with
        the most common of the same methods.

        Raises:
            MissingExtraError: ``tokenizers`` is not installed.
            NotFoundError: The version has no tokenizer.
            TokenizerError: The file is not a tokenizer, or loading it takes too much
                time or memory.
            ConfigError: The sources have different tokenizers.
        """
        where = f"{self.manifest.dataset}@v{self.manifest.version}"
        digests: dict[str, str] = {}  # path of each tokenizer -> hash of its file
        for path, entry in self.manifest.other_files.items():
            if path.startswith(f"{TOKENIZER}/") and path.endswith("/tokenizer.json"):
                digests[path] = entry.sha256
        if not digests:
            raise NotFoundError(
                f"{where} holds no {TOKENIZER}/tokenizer.json; its ids cannot be decoded"
            )
        if len(set(digests.values())) > 1:
            raise ConfigError(
                f"the sources of {where} have different tokenizers: {', '.join(sorted(digests))}"
            )
        # All tokenizers are equal, so that any will do; the first path makes messages
        # reproducible.
        path, digest = min(digests.items())
        layout = Layout(self.manifest.dataset, self.manifest.version)
        return open_tokenizer(
            f"{where}/{path}", verified_bytes(self._store, layout, path, digest)
        )

    def __len__(self) -> int:
        return self._rows.rows

    def __bool__(self) -> bool:
        return True

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any]:
        """Return one row or a range of rows, as arrays.

        The arrays of a row have the shape (L,), and those of n rows (n, L).

        A row that is not packed is a dict of the stored values; for ranges of such rows
        use :meth:`read`.

        Raises:
            IndexError: The row does not exist.
        """
        # A range comes as arrays, which only rows of one length can fill.
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.take(np.arange(start, stop, step, dtype=np.int64))
        if not hasattr(index, "__index__"):
            raise TypeError(
                f"{self.name}[{index!r}]: rows are taken by number or slice; for many, take([3, 1, 4])"
            )
        row = int(index)
        # IndexError ends a `for` loop over the rows, and negative numbers count from
        # the end, as in lists.
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.name} has {len(self)} rows; there is no row {row}")
        row %= len(self)
        if self.kind != "packed":
            return self.read(row, row + 1).to_pylist()[0]
        return {name: values[0] for name, values in self.take(np.array([row])).items()}

    def take(
        self, rows: Int64 | Sequence[int], columns: Sequence[str] | None = None
    ) -> Batch:
        """Return rows in any order: column -> array of shape (n, L).

        Args:
            rows: Numbers of rows, int64[n], from 0 to ``len(self) - 1``.
            columns: Names of the columns, as for :class:`tokenlake.DataLoader`; None:
                the default ones.

        Raises:
            ConfigError: The rows are not packed, or a row or column does not exist.
            IntegrityError: A file is damaged.
        """
        self._require_packed("rows of one length")
        # Each row group is decoded once, whatever the order of the rows. Memory is
        # fresh: callers keep such arrays.
        group, row = self._rows.group_of(np.asarray(rows, np.int64))
        assembler = Assembler([self._rows], check_columns(columns), fresh=True)
        groups = {
            number: self._cache.read(number) for number in np.unique(group).tolist()
        }
        return assembler.batch(
            BatchShape(len(group), self.seq_length), group, row, groups.__getitem__
        )

    def read(self, start: int, stop: int) -> pa.Table:
        """Return rows `start` to `stop` - 1 as they are stored.

        There are fewer where the split ends.
        """
        # Slices share the memory of the decoded row groups.
        parts: list[pa.RecordBatch] = []
        for group, first_row, end_row in self._rows.ranges(max(start, 0), stop):
            parts.append(self._rows.read(group).slice(first_row, end_row - first_row))
        schema = parts[0].schema if parts else self.schema
        return pa.Table.from_batches(parts, schema=schema)

    def documents(self, index: int) -> list[dict[str, Any]]:
        """Return the documents that the segments of a row come from.

        Returns:
            For each segment: ``source``, ``path``, ``position`` (row index or byte
            offset of the document), ``start`` (first id in the document), ``length``.
        """
        self._require_packed("documents of a row")
        # Segments and pieces of provenance are stored in the same order.
        row = self.read(index, index + 1).to_pylist()[0]
        documents: list[dict[str, Any]] = []
        lengths = row["segment_lengths"]
        for length, origin in zip(lengths, row["documents"], strict=True):
            entry = self._inputs.get(origin["file"])
            if entry is None:
                raise IntegrityError(
                    f"{self.name}: row {index} is of file {origin['file']}, which is not among the inputs"
                )
            documents.append(
                {
                    "source": entry.source,
                    "path": entry.path,
                    "position": origin["position"],
                    "start": origin["start"],
                    "length": length,
                }
            )
        return documents

    def decode(self, index: int) -> list[str]:
        """Return the text of each segment of a row, special tokens included."""
        row = self.read(index, index + 1).to_pylist()[0]
        # Padding follows the last segment, and is left out.
        ids = row["input_ids"]
        lengths = row["segment_lengths"] if self.kind == "packed" else [len(ids)]
        texts: list[str] = []
        first_id = 0
        for length in lengths:
            texts.append(
                self.tokenizer.decode(
                    ids[first_id : first_id + length], skip_special_tokens=False
                )
            )
            first_id += length
        return texts

    def to_hf(
        self,
        *,
        columns: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Return all rows, in stored order, as a memory-mapped ``datasets.Dataset``.

        ::

            Trainer(model, args, train_dataset=ds.to_hf())

        The columns are computed once, into one Arrow file for each shard, in the cache
        of ``datasets``. The name of a file is a hash of its contents' inputs, so that
        it is used again. All data is verified: shards are read page by page and
        compared with their checksums, which ``datasets`` would not do, and an existing
        Arrow file is hashed before it is used (about 1 s per GB). Later reads through
        the memory map are not checked, as with every ``datasets.Dataset``.

        Args:
            columns: Names of the columns; None: for a packed dataset ``input_ids``,
                ``labels`` and ``position_ids``, for other kinds all stored columns.
                Columns of a packed dataset, each with L values:

                - ``input_ids``: int32;
                - ``labels``: int32, aligned with ``input_ids`` (the model shifts them),
                  -100 for ids that do not count toward the loss: padding, the first id
                  of each segment, and ids that a stored loss mask excludes;
                - ``position_ids``: int32, from 0 in each segment. With them
                  transformers keeps segments apart, if there is no ``attention_mask``
                  and the model has ``use_cache=False``, which its Trainer sets;
                - ``attention_mask``: int8, 0 in padding. With it a segment attends to
                  those before it in its row;
                - ``segment_ids`` (int32), ``loss_mask`` (bool), ``targets`` (int32):
                  see :mod:`tokenlake.runtime.loader.columns`.
            rename: Name of a column -> name in the dataset.
            cache_dir: Folder of the Arrow files, which take 4 bytes per id and column;
                None: ``tokenlake`` in the cache of ``datasets``.

        Raises:
            MissingExtraError: ``datasets`` is not installed.
            ConfigError: A column does not exist, or two would have the same name.
            IntegrityError: A shard is damaged.
        """
        return to_hf(self._rows, columns, rename, cache_dir)

    @property
    def pad_id(self) -> int:
        """Padding id."""
        return pad_id_of(self.manifest)

    def close(self) -> None:
        """Close the files and drop decoded rows. Later reads open the files again."""
        self._rows.close()
        self._cache.groups.invalidate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, also in a worker process, gets no open files, locks or decoded rows.
        return Dataset, (self._store, self.manifest, self.split)

    def __repr__(self) -> str:
        length = f" x {self.manifest.width}" if self.manifest.width else ""
        return f"Dataset({one_line(self.name)}: {numbers.plural(len(self), 'row')}{length}, {self.kind})"

    def _repr_html_(self) -> str:
        # Notebooks show the facts that the manifest knows; no file is opened.
        totals = self.manifest.splits[self.split]
        facts = {
            "kind": self.kind,
            "rows": len(self),
            "ids of a row": self.manifest.width or None,
            "tokens": totals.tokens,
            "documents": totals.documents,
            "shards": totals.files,
            "sources": ", ".join(self.manifest.accounts),
        }
        return named_facts(f"Dataset {self.name}", facts)

    @cached_property
    def _inputs(self) -> dict[int, Any]:
        """Input files by their ids."""
        return {entry.file_id: entry for entry in self.manifest.inputs}

    def _require_packed(self, feature: str) -> None:
        """Raise ConfigError if rows are not packed, and therefore lack a feature."""
        if self.kind != "packed":
            raise ConfigError(
                f"{self.name} is of kind {self.kind}, which has no {feature}; pack it first: "
                f"datasets: [{{dataset: {self.manifest.dataset}@v{self.manifest.version}}}], pack: {{enabled: true}}"
            )


def whole_numbers(array: Any) -> Int64:
    """Return an Arrow array of integers as int64[n]."""
    return array.to_numpy(zero_copy_only=False).astype(np.int64)


def open(
    where: str | os.PathLike[str],
    name: str | None = None,
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> Dataset:
    """Open a version of a dataset. Only its manifest is read.

    `where` and `name` are ``"artifacts/books"`` (newest version),
    ``"artifacts/books@v3"``, ``"artifacts/books@prod"`` (a tag), ``"artifacts",
    "books@v3"``, or ``"s3://bucket/artifacts/books"`` with ``cache="/scratch/shards",
    cache_bytes="200GB"``.

    Args:
        where: Store and dataset, or a store if `name` is given: a path, or a URL with
            ``file``, ``s3``, ``gs``, ``https`` or another of fsspec's schemes.
        name: ``NAME`` (newest version), ``NAME@v3``, or ``NAME@prod`` (a tag). Web
            servers do not list their files, so that they need a version or a tag.
        split: Name of the split; None: ``train``, or the only one.
        storage_options: Options of fsspec's file system; ``{"env": NAME}`` is replaced
            by an environment variable.
        cache: Folder for copies of whole shards of remote stores, shared by all
            processes that use it; None: ranges of row groups are read.
        cache_bytes: Size of all copies together, such as ``"100GB"``; None: 64 GiB.

    Returns:
        One split of the version.

    Raises:
        NotFoundError: The version does not exist; the message names similar ones.
        ConfigError: The split does not exist, or the version has several and none is
            named; or an option has no use.
        MissingExtraError: The package that reads the URL is missing.
        IntegrityError: The manifest is damaged.

    Example:
        >>> import tokenlake as tl
        >>> train = tl.open("artifacts/books@v3")
        >>> validation = tl.open("artifacts/books@v3", split="validation")
        >>> train.name, validation.name
        ('books@v3/train', 'books@v3/validation')
    """
    # `where` may end with the name of the dataset, and the name with a version or tag.
    place, named = parted(where, name)
    store = open_read_store(
        place, storage_options=storage_options, cache=cache, cache_bytes=cache_bytes
    )
    try:
        manifest = Catalog(store).manifest_of(named)
    except StoreError as error:
        hint = _missing_folder(place)
        if not hint and name is None:
            hint = _datasets_inside(os.fspath(where), storage_options)
        if hint:
            raise NotFoundError(hint) from error
        raise
    # Guessing between several splits could train on held-out rows.
    if split is None:
        names = list(manifest.splits)
        if "train" not in names and len(names) != 1:
            raise ConfigError(
                f"{manifest.dataset}@v{manifest.version} has the splits "
                f"{', '.join(names) or '(none: it has no rows)'}; name one: split=..."
            )
        split = "train" if "train" in names else names[0]
    return Dataset(store, manifest, split)


def _missing_folder(place: str) -> str:
    """Return a message that names the missing folder and similar ones.

    It is "" if the store is a folder, or remote.
    """
    # Name the first folder of the path that is missing: the error is usually there.
    folder = Path(place).expanduser().absolute()
    if "://" in place or folder.is_dir():
        return ""
    parent = next(path for path in folder.parents if path.is_dir())
    missing = folder.relative_to(parent).parts[0]
    similar: list[str] = []
    with suppress(OSError):  # the folder may not be readable
        names = [path.name for path in parent.iterdir() if path.is_dir()]
        similar = get_close_matches(missing, names, n=3)
    message = f"there is no store {folder}: {parent} has no folder {missing!r}"
    if similar:
        paths = " or ".join(str(parent / name) for name in similar)
        message += f"; did you mean {paths}?"
    return message


def _datasets_inside(where: str, options: Mapping[str, Any] | None) -> str:
    """Return a message that lists the datasets of a store.

    It is "" if the address is not a store, or cannot be listed.
    """
    datasets: list[str] = []
    with suppress(TokenlakeError):
        datasets = Catalog(open_read_store(where, storage_options=options)).datasets()
    if not datasets:
        return ""
    # The user named the store only; show what can be added to it.
    names = ", ".join(datasets[:_NAMES_SHOWN])
    if len(datasets) > _NAMES_SHOWN:
        names += f" and {len(datasets) - _NAMES_SHOWN} more"
    example = f"{where.rstrip('/')}/{datasets[0]}"
    return f"{where} is a store, not a dataset; it has {names}. Open one of them: tl.open({example!r})"
