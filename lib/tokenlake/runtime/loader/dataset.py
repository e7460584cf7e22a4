"""A stored version, opened by its path or URL: its rows by number, its manifest, its tokenizer."""

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
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError, TokenlakeError
from tokenlake.runtime.loader.batch import Assembler, Batch, BatchShape, pad_id_of
from tokenlake.runtime.loader.columns import check_columns
from tokenlake.runtime.loader.hf_arrow import to_hf
from tokenlake.runtime.reading.group_cache import GroupCache
from tokenlake.runtime.reading.packed import PackedGroup
from tokenlake.runtime.reading.version import StoredRows, stored_schema, verified_bytes
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.layout import TOKENIZER, Layout
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.tokenizer_guard.backend import open_tokenizer

_CACHE_BYTES: Final = 64 << 20


@final
class Dataset:
    """One split of a committed version. Opening reads its manifest, and no other file.

    ::

        ds = tl.open("artifacts/llama2-2048@v3")
        ds[17]["input_ids"]         # int32 (2048,)
        ds[100:200]["segment_ids"]  # int32 (100, 2048)

    May be used by several threads; rows that are read stay decoded as long as 64 MiB hold them.
    """

    def __init__(self, store: ReadStore, manifest: Manifest, split: str) -> None:
        """Open nothing yet; ConfigError if there is no such split."""
        self._store, self._rows = store, (rows := StoredRows(store, manifest, split))
        self._cache: GroupCache[int, PackedGroup] = GroupCache(
            _CACHE_BYTES, lambda group: rows.packed(group, loss_mask=rows.has_loss_mask)
        )

    @property
    def name(self) -> str:
        """``llama2-2048@v3/train``."""
        return self._rows.name

    @property
    def manifest(self) -> Manifest:
        """Of the version."""
        return self._rows.manifest

    @property
    def split(self) -> str:
        return self._rows.split

    @property
    def store(self) -> ReadStore:
        """Where it lies."""
        return self._store

    @property
    def rows(self) -> StoredRows:
        """The rows by row group, as they are stored."""
        return self._rows

    @property
    def kind(self) -> str:
        """``packed``, ``tokens`` or ``preference``."""
        return self.manifest.kind

    @property
    def seq_length(self) -> int:
        """Ids of a row; ConfigError where rows are of many lengths."""
        self._require_packed("seq_length")
        return self.manifest.width

    @property
    def vocab_size(self) -> int:
        """One more than the largest id of the tokenizer, added tokens included: the rows of an embedding.

        It is read from the manifest, so that no package is needed.

        Raises:
            NotFoundError: The manifest does not name a tokenizer.
            ConfigError: The sources have tokenizers of different sizes.
        """
        sizes: dict[str, int] = {}
        for source, description in self.manifest.tokenizer.items():
            if description.get("vocab_size"):
                sizes[source] = int(description["vocab_size"])
        where = f"{self.manifest.dataset}@v{self.manifest.version}"
        if not sizes:
            raise NotFoundError(
                f"{where} does not say how large its vocabulary is; expected a tokenizer in its manifest"
            )
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{source} {size:,}" for source, size in sorted(sizes.items()))
            raise ConfigError(
                f"{where}: its sources have vocabularies of different sizes ({listed}); expected one size"
            )
        return next(iter(sizes.values()))

    @property
    def columns(self) -> tuple[str, ...]:
        """What :meth:`take` gives where no columns are named."""
        return check_columns(None)

    @cached_property
    def schema(self) -> pa.Schema:
        """Of the stored rows (of kind packed without opening a file)."""
        if self.kind == "packed":
            return stored_schema(self.manifest)
        return self._rows.read(0).schema if len(self) else pa.schema([])

    @cached_property
    def tokenizer(self) -> Any:
        """The version's own tokenizer, a ``tokenizers.Tokenizer``.

        A tokenizer of an unusual form, which could take any time or memory, runs in a bounded process. It is a
        :class:`~tokenlake.runtime.tokenizer_guard.process.BoundedTokenizer` then, with the most common of
        the same methods.

        Raises:
            MissingExtraError: ``tokenizers`` is not installed.
            NotFoundError: the version has none.
            TokenizerError: the file is no tokenizer's, or loading it takes too much time or memory.
            ConfigError: its sources have different ones.
        """
        where = f"{self.manifest.dataset}@v{self.manifest.version}"
        found = {
            path: entry.sha256
            for path, entry in self.manifest.other_files.items()
            if path.startswith(f"{TOKENIZER}/") and path.endswith("/tokenizer.json")
        }
        if not found:
            raise NotFoundError(f"{where} holds no {TOKENIZER}/tokenizer.json; its ids cannot be decoded")
        if len(set(found.values())) > 1:
            raise ConfigError(f"the sources of {where} have different tokenizers: {', '.join(sorted(found))}")
        path, digest = min(found.items())
        layout = Layout(self.manifest.dataset, self.manifest.version)
        return open_tokenizer(f"{where}/{path}", verified_bytes(self._store, layout, path, digest))

    def __len__(self) -> int:
        return self._rows.rows

    def __bool__(self) -> bool:
        return True

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any]:
        """Return one row (arrays of shape (L,)) or a range of rows (arrays of shape (n, L)).

        Of kinds other than packed one row is a dict of what is stored; ranges are for :meth:`read`.

        Raises:
            IndexError: there is no such row.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.take(np.arange(start, stop, step, dtype=np.int64))
        if not hasattr(index, "__index__"):
            raise TypeError(
                f"{self.name}[{index!r}]: rows are taken by number or slice; for many, take([3, 1, 4])"
            )
        at = int(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"{self.name} has {len(self)} rows; there is no row {at}")
        at %= len(self)
        if self.kind != "packed":
            return self.read(at, at + 1).to_pylist()[0]
        return {name: values[0] for name, values in self.take(np.array([at])).items()}

    def take(self, rows: Int64 | Sequence[int], columns: Sequence[str] | None = None) -> Batch:
        """Return rows in any order: column -> array of shape (n, L).

        Args:
            rows: numbers of rows, n of them, 0 to ``len(self) - 1``.
            columns: see :class:`tokenlake.runtime.loader.DataLoader`.

        Raises:
            ConfigError: of another kind than packed, there is no such row or column.
            IntegrityError: a file is damaged.
        """
        self._require_packed("rows of one length")
        group, row = self._rows.group_of(np.asarray(rows, np.int64))
        assembler = Assembler([self._rows], check_columns(columns), fresh=True)
        groups = {number: self._cache.read(number) for number in np.unique(group).tolist()}
        return assembler.batch(BatchShape(len(group), self.seq_length), group, row, groups.__getitem__)

    def read(self, start: int, stop: int) -> pa.Table:
        """Return rows ``start .. stop`` as they are stored, fewer where the split ends."""
        parts = [
            self._rows.read(group).slice(low, high - low)
            for group, low, high in self._rows.ranges(max(start, 0), stop)
        ]
        return pa.Table.from_batches(parts, schema=parts[0].schema if parts else self.schema)

    def documents(self, index: int) -> list[dict[str, Any]]:
        """Return where the segments of a row come from.

        Returns:
            for each: ``source``, ``path``, ``position`` (row number or byte offset of the document), ``start`` (its
            first id within the document), ``length``.
        """
        self._require_packed("documents of a row")
        row = self.read(index, index + 1).to_pylist()[0]
        found = list[dict[str, Any]]()
        for length, piece in zip(row["segment_lengths"], row["documents"], strict=True):
            if (entry := self._inputs.get(piece["file"])) is None:
                raise IntegrityError(
                    f"{self.name}: row {index} is of file {piece['file']}, which no input is"
                )
            place = {"source": entry.source, "path": entry.path}
            found.append({**place, "position": piece["position"], "start": piece["start"], "length": length})
        return found

    def decode(self, index: int) -> list[str]:
        """Return the text of each segment of a row; special tokens stay visible."""
        row = self.read(index, index + 1).to_pylist()[0]
        lengths = row["segment_lengths"] if self.kind == "packed" else [len(row["input_ids"])]
        ends = np.cumsum(lengths)
        return [
            self.tokenizer.decode(row["input_ids"][end - length : end], skip_special_tokens=False)
            for length, end in zip(lengths, ends.tolist(), strict=True)
        ]

    def to_hf(
        self,
        *,
        columns: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Return all rows as a ``datasets.Dataset``, memory-mapped, in the order in which they are stored.

        ::

            Trainer(model, args, train_dataset=ds.to_hf())

        The columns are made once, into one Arrow file for each shard, as ``datasets`` itself keeps what it prepares;
        the files are found again by what is in them. No verification is lost: shards are read page by page against
        their checksums, which ``datasets`` would not do, and an Arrow file that is found is hashed before it is used
        (about 1 s per GB). Later reads through the memory map are checked by nobody, as with every
        ``datasets.Dataset``.

        Args:
            columns: of a packed dataset any of

                - ``input_ids``: int32, L of them, as all others;
                - ``labels``: int32, aligned with ``input_ids`` (the model shifts them), -100 where there is no loss:
                  padding, the first id of each segment, what a stored loss mask leaves out;
                - ``position_ids``: int32, from 0 in each segment. By them transformers keeps segments apart, if there
                  is no ``attention_mask`` and the model has ``use_cache=False``, which its Trainer sets;
                - ``attention_mask``: int8, 0 in padding. With it a segment sees those before it in its row;
                - ``segment_ids`` (int32), ``loss_mask`` (bool), ``targets`` (int32): see
                  :mod:`tokenlake.runtime.loader.columns`.

                None: ``input_ids``, ``labels`` and ``position_ids``. Of other kinds: any that are stored; None: all.
            rename: {name here: name in the dataset}.
            cache_dir: folder of the Arrow files, 4 bytes per id and column; None: ``tokenlake`` in the cache of
                ``datasets``.

        Raises:
            MissingExtraError: ``datasets`` is not installed.
            ConfigError: there is no such column, or a name would be there twice.
            IntegrityError: a shard is damaged.
        """
        return to_hf(self._rows, columns, rename, cache_dir)

    @property
    def pad_id(self) -> int:
        """The id of padding."""
        return pad_id_of(self.manifest)

    def close(self) -> None:
        """Close files and let go of decoded rows; what is read later opens them again."""
        self._rows.close()
        self._cache.groups.invalidate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # What a copy or a worker process gets: nothing that is open, locked or decoded.
        return Dataset, (self._store, self.manifest, self.split)

    def __repr__(self) -> str:
        length = f" x {self.manifest.width}" if self.manifest.width else ""
        return f"Dataset({one_line(self.name)}: {numbers.plural(len(self), 'row')}{length}, {self.kind})"

    def _repr_html_(self) -> str:
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
        return {entry.file_id: entry for entry in self.manifest.inputs}

    def _require_packed(self, what: str) -> None:
        if self.kind != "packed":
            raise ConfigError(
                f"{self.name} is of kind {self.kind}, which has no {what}; pack it first: "
                f"datasets: [{{dataset: {self.manifest.dataset}@v{self.manifest.version}}}], pack: {{enabled: true}}"
            )


def whole_numbers(array: Any) -> Int64:
    return array.to_numpy(zero_copy_only=False).astype(np.int64)


_SHOWN: Final = 20  # datasets that a message names


def open(
    where: str | os.PathLike[str],
    name: str | None = None,
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> Dataset:
    """Open a version of a dataset; its manifest is read, and nothing else.

    ::

        tl.open("artifacts/llama2-2048")  # the newest version
        tl.open("artifacts/llama2-2048@v3")
        tl.open("artifacts", "llama2-2048@v3")
        tl.open("s3://bucket/artifacts/llama2-2048@prod", cache="/scratch/shards", cache_bytes="200GB")

    Args:
        where: a store and a dataset in it, or a store if `name` is given: a path, or a URL with ``file``, ``s3``,
            ``gs``, ``https`` or another of fsspec's schemes.
        name: ``NAME`` (newest), ``NAME@v3``, or ``NAME@prod`` (a tag). Web servers do not list what they have: there a
            version or a tag is needed.
        split: None: ``train``, or else the only one.
        storage_options: for fsspec's file system; ``{"env": NAME}`` stands for an environment variable.
        cache: a folder for copies of whole shards, for remote stores, shared by all processes that name it; without one
            row groups are read by ranges.
        cache_bytes: what the copies may take together, such as ``"100GB"``; 64 GiB by default.

    Raises:
        NotFoundError: there is no such version; near matches are named.
        ConfigError: there is no such split, or more than one and none is named; an option has no use.
        MissingExtraError: the package that reads the URL is missing.
        IntegrityError: the manifest is damaged.
    """
    place, named = parted(where, name)
    store = open_read_store(place, storage_options=storage_options, cache=cache, cache_bytes=cache_bytes)
    try:
        manifest = Catalog(store).manifest_of(named)
    except StoreError as error:
        if hint := _missing_folder(place) or (
            _inside(os.fspath(where), storage_options) if name is None else ""
        ):
            raise NotFoundError(hint) from error
        raise
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
    """Say which folder is not there, and which are near; "" where the store is a folder, or remote."""
    folder = Path(place).expanduser().absolute()
    if "://" in place or folder.is_dir():
        return ""
    above = next(each for each in folder.parents if each.is_dir())
    missing = folder.relative_to(above).parts[0]
    near = list[str]()
    with suppress(OSError):  # nobody may look
        near = get_close_matches(missing, (each.name for each in above.iterdir() if each.is_dir()), n=3)
    guess = f"; did you mean {' or '.join(str(above / each) for each in near)}?" if near else ""
    return f"there is no store {folder}: {above} has no folder {missing!r}{guess}"


def _inside(where: str, options: Mapping[str, Any] | None) -> str:
    """Say what is there where the address is that of a store; "" where it is none, or cannot be listed."""
    found: list[str] = []
    with suppress(TokenlakeError):
        found = Catalog(open_read_store(where, storage_options=options)).datasets()
    if not found:
        return ""
    names = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    first = f"{where.rstrip('/')}/{found[0]}"
    return f"{where} is a store, not a dataset; it has {names}. Open one of them: tl.open({first!r})"
