"""A few rows of a version with their segments, read with page checksums; and how its documents and rows are filled.

Rows name the file that a text came from, with the source's name of that time. A mixture may call the same tokens
otherwise, and which of its sources a document is of follows from the inputs of the parents.

How long documents are, and how full rows, is measured in some row groups, however large the version is: at even
distances, always the same ones. Of packed rows only the columns that say where ids come from are read for it, less than
a hundredth of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of, values
from tokenlake.base.columns import columns_for, id_weights
from tokenlake.base.json_text import json_values
from tokenlake.base.numbers import count, plural
from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.runtime.loader.provenance import Provenance
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.ledger import InputFileEntry, ShardEntry
from tokenlake.runtime.store.manifest import Manifest

Place: TypeAlias = tuple[str, str]
"""Source and path of an input file, as rows name it."""
_HEAD: Final = 360  # characters of a long text that are shown, and
_TAIL: Final = 120  # of its end


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """A run of ids of one document.

    Attributes:
        source, path, position: where the document comes from (`position`: row number or byte offset).
        start: index of the run's first id within the document.
        ids: the run.
        part: of a preference: prompt, chosen, rejected or completion.
        learned: which of the ids bear loss; None where the dataset does not say, so that all do.
    """

    source: str
    path: str
    position: int
    start: int
    ids: tuple[int, ...]
    part: str | None = None
    learned: tuple[bool, ...] | None = None

    def origin(self, names: Mapping[Place, str]) -> str:
        """``web  a.jsonl:17``; in a mixture that calls the source otherwise, ``web (books)  a.jsonl:17``."""
        source = names.get((self.source, self.path), self.source)
        return f"{source}{'' if source == self.source else f' ({self.source})'}  {self.path}:{self.position}"

    def place(self, begin: int) -> str:
        """``ids 0-511, from token 17 of its document, 40 in the loss``; of a preference's part, ``12 tokens``.

        Args:
            begin: of the run in its row.
        """
        if self.part:
            return plural(len(self.ids), "token")
        start = f", from token {count(self.start)} of its document" if self.start else ""
        learned = "" if self.learned is None else f", {count(sum(self.learned))} in the loss"
        return f"ids {begin}-{begin + len(self.ids) - 1}{start}{learned}"

    def runs(self) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """Yield (whether they bear loss, ids) of neighbours that are alike; the whole as learned without a mask."""
        if self.learned is None:
            yield True, self.ids
            return
        pairs = zip(self.learned, self.ids, strict=True)
        for bears, run in groupby(pairs, key=itemgetter(0)):
            yield bears, tuple(token for _, token in run)


@final
@dataclass(frozen=True, slots=True)
class Sequence:
    """One row: its place, its segments, how many ids of padding it has, and the fields kept beside it.

    Of a judged answer, `label` says whether it is good.
    """

    split: str
    row: int
    shard: str
    shard_row: int
    segments: tuple[Segment, ...]
    padding: int
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    label: bool | None = None

    def content(self) -> str:
        """``2,048 tokens in 3 segments, 17 padding``."""
        tokens = plural(sum(len(segment.ids) for segment in self.segments), "token")
        padding = f", {count(self.padding)} padding" if self.padding else ""
        labelled = "" if self.label is None else f", labelled {'good' if self.label else 'bad'}"
        return f"{tokens} in {plural(len(self.segments), 'segment')}{padding}{labelled}"


def read_sequences(
    store: ReadStore, manifest: Manifest, split: str | None, first: int, number: int
) -> Iterator[Sequence]:
    """Yield rows ``first .. first + number`` of a split, fewer where it ends; reads only their row groups.

    Args:
        split: its name; None means ``train`` or else the first there is.
        first: row of the split, in the order of the manifest's shards; negative counts from the end.

    Raises:
        ConfigError: no such split, or `first` is past its end.
        IntegrityError: a shard is missing or damaged.
    """
    where, names = f"{manifest.dataset}@v{manifest.version}", list(manifest.splits)
    if not names:
        raise ConfigError(f"{where} has no rows")
    name = split if split is not None else "train" if "train" in names else names[0]
    if name not in names:
        raise ConfigError(f"{where} has no split {name!r}; expected one of {', '.join(names)}")
    total = manifest.splits[name].rows
    start = first if first >= 0 else max(0, total + first)
    if start >= total:
        raise ConfigError(
            f"row {first} is past the end: split {name!r} of {where} has {total} rows (0 to {total - 1})"
        )
    inputs = {entry.file_id: entry for entry in manifest.inputs}
    with StoredRows(store, manifest, name) as stored:
        for group, low, high in stored.ranges(start, start + number):
            shard, index = stored.shard_of(group)
            batch, begin = stored.read(group), stored.row_of(group)
            for row in range(low, high):
                values = _values_of(batch.slice(row, 1))
                yield _sequence(manifest, shard, begin + row, shard.row_groups[index] + row, values, inputs)


def _values_of(row: pa.RecordBatch) -> dict[str, Any]:
    """Return the values of one row; those for which Python has no type, such as the year 33658, as text."""
    cells: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            cells[name] = column.to_pylist()[0]
        except (OverflowError, ValueError):
            cells[name] = json_values(column)[0]
    return cells


def _sequence(
    manifest: Manifest,
    shard: ShardEntry,
    row: int,
    shard_row: int,
    values: dict[str, Any],
    inputs: dict[int, InputFileEntry],
) -> Sequence:
    kept = {name: values[name] for name, _ in manifest.config.get("build", {}).get("kept", ())}
    segments: list[Segment] = []
    if manifest.preference is not None:
        entry, columns = inputs[values["file"]], columns_for(*manifest.preference)
        runs: dict[tuple[str, ...], list[int]] = {
            column.parts: values[column.name] for column in columns if column.holds == "ids"
        }
        for parts, run in runs.items():  # an answer without the prompt that its column may begin with
            answer = tuple(run[len(runs.get(parts[:-1], ())) :])
            segments.append(Segment(entry.source, entry.path, values["position"], 0, answer, parts[-1]))
        label = values.get("label")
        return Sequence(shard.split, row, shard.path, shard_row, tuple(segments), 0, kept, label)
    ids: list[int] = values["input_ids"]
    packed = manifest.kind == "packed"
    mask: list[int] = values.get("attention_mask") or [1] * len(ids)
    lengths: list[int] = values["segment_lengths"] if packed else [sum(mask)]
    documents: list[dict[str, int]] = values["documents"] if packed else [{**values, "start": 0}]
    learned: list[bool] | None = values.get("loss_mask")
    # Padding is behind the documents of a packed row, and may be before the only one of another.
    begin = 0 if packed else mask.index(1)
    for length, document in zip(lengths, documents, strict=True):
        entry = inputs[document["file"]]
        end = begin + length
        place = (entry.source, entry.path, document["position"], document["start"])
        bits = None if learned is None else tuple(learned[begin:end])
        segments.append(Segment(*place, tuple(ids[begin:end]), learned=bits))
        begin += length
    padding = len(ids) - sum(lengths)
    return Sequence(shard.split, row, shard.path, shard_row, tuple(segments), padding, kept)


def mixed_as(catalog: Catalog, manifest: Manifest) -> dict[Place, str]:
    """Return the name in the mixture of every input file that is of one of its sources alone.

    Nothing for what is no mixture, and nothing of parents that are not in the store any more.
    """
    found: dict[Place, set[str]] = {}
    sources = {} if manifest.mixture is None else manifest.mixture.sources
    for name, source in sources.items():
        try:
            parent = catalog.manifest(source.dataset, source.version)
        except NotFoundError:
            continue
        for entry in parent.inputs:
            found.setdefault((entry.source, entry.path), set()).add(name)
    return {place: names.pop() for place, names in found.items() if len(names) == 1}


def decoders_of(store: ReadStore, manifest: Manifest) -> dict[str, Decoder]:
    """Return a decoder for each source that rows name; the sources of a mixture have one tokenizer.

    Raises:
        NotFoundError: the version has no tokenizer.
    """
    found = {name: Decoder.of(store, manifest, name) for name in manifest.tokenizer}
    if manifest.mixture is not None and found:
        # Rows name the sources that their texts came from, whatever these were called in the mixture.
        shared = next(iter(found.values()))
        found |= {entry.source: shared for entry in manifest.inputs if entry.source not in found}
    return found


def shortened(text: str) -> tuple[str, int, str]:
    """Return the beginning of a text, how many characters are left out, and its end; a short one whole."""
    text = text.rstrip("\n")
    hidden = len(text) - _HEAD - _TAIL
    return (text, 0, "") if hidden <= _HEAD // 4 else (text[:_HEAD], hidden, text[-_TAIL:])


MOST_GROUPS: Final = 64
"""Row groups that are read."""
_NAMED: Final = 5  # of the longest documents, and of the shortest ones


class DocumentLength(NamedTuple):
    """A document by its place, and how many ids of it there are."""

    source: str
    path: str
    position: int
    ids: int


@final
@dataclass(frozen=True, eq=False, slots=True)
class RowSample:
    """What some row groups hold.

    Attributes:
        groups, of: how many were read, and how many there are.
        rows: of these row groups.
        filled: ids of each row that are no padding, int64[rows].
        segments: pieces of documents in each row, int64[rows].
        lengths: source -> ids of each of its documents, as far as they were seen, int64[n].
        longest, shortest: documents by their lengths.
    """

    groups: int
    of: int
    rows: int
    filled: Int64
    segments: Int64
    lengths: Mapping[str, Int64]
    longest: tuple[DocumentLength, ...]
    shortest: tuple[DocumentLength, ...]


def spread(number: int, most: int) -> list[int]:
    """Return at most so many of the numbers 0 to ``number - 1``, at even distances.

    >>> spread(3, 5), spread(100, 3)
    ([0, 1, 2], [0, 50, 99])
    """
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(np.int64)).tolist()


def sample_rows(
    store: ReadStore, manifest: Manifest, names: Mapping[Place, str], *, most_groups: int = MOST_GROUPS
) -> RowSample:
    """Read some row groups of every split.

    Args:
        names: what a mixture calls the sources of input files.
        most_groups: at least one of each split is read all the same.

    Raises:
        IntegrityError: a file is missing or damaged.
    """
    read, of, found = 0, 0, list[Provenance]()
    for split in manifest.splits:
        with StoredRows(store, manifest, split) as rows:
            of += len(rows.group_rows)
            for group in spread(len(rows.group_rows), max(1, most_groups // len(manifest.splits))):
                found.append(_pieces(rows, group))
                read += 1
    pieces = Provenance(
        offsets_of(np.concatenate([_NONE, *(np.diff(each.offsets) for each in found)])),
        *(np.concatenate([_NONE, *(getattr(each, name) for each in found)]) for name in _FIELDS),
    )
    order = np.lexsort((pieces.position, pieces.file))
    file, position = pieces.file[order], pieces.position[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(file) != 0) | (np.diff(position) != 0)
    begin = np.flatnonzero(new)
    file, position = file[begin], position[begin]
    # Of a document that goes on beyond the sample, the ids up to where it was seen. A mixture may hold a document more
    # than once: it is as long as where its last piece ends.
    ends = (pieces.start + pieces.length)[order]
    ids = np.maximum.reduceat(ends, begin) if len(begin) else _NONE
    there, files = set(file.tolist()), dict[str, list[int]]()
    places = {
        entry.file_id: (names.get((entry.source, entry.path), entry.source), entry.path)
        for entry in manifest.inputs
        if entry.file_id in there
    }
    for number, (source, _) in places.items():
        files.setdefault(source, []).append(number)

    def named(which: Int64) -> tuple[DocumentLength, ...]:
        return tuple(
            DocumentLength(*places[int(file[i])], int(position[i]), int(ids[i]))
            for i in which[:_NAMED].tolist()
        )

    return RowSample(
        groups=read,
        of=of,
        rows=len(pieces.offsets) - 1,
        filled=np.diff(offsets_of(pieces.length)[pieces.offsets]),
        segments=np.diff(pieces.offsets),
        lengths={source: ids[np.isin(file, files[source])] for source in sorted(files)},
        longest=named(np.argsort(-ids, kind="stable")),
        shortest=named(np.argsort(ids, kind="stable")),
    )


_NONE: Final = np.zeros(0, np.int64)
_FIELDS: Final = ("length", "file", "position", "start")


def _pieces(rows: StoredRows, group: int) -> Provenance:
    """Read the pieces of a row group; a row that is one document is one piece."""
    manifest = rows.manifest
    if manifest.kind == "packed":
        return Provenance.of(rows.read(group, ["segment_lengths", "documents"]))
    weights = {"input_ids": 1} if manifest.preference is None else id_weights(*manifest.preference)
    masked = bool(manifest.config.get("build", {}).get("attention_mask"))
    columns = ["attention_mask"] if masked else list(weights)
    batch: Any = rows.read(group, ["file", "position", *columns])
    if masked:
        lists = batch.column("attention_mask")
        offsets = values(lists.offsets)
        length = np.diff(offsets_of(values(lists.values))[offsets])
    else:
        length = sum(weights[name] * values(batch.column(name).value_lengths()) for name in columns)
    number = batch.num_rows
    places = (values(batch.column(name)).astype(np.int64) for name in ("file", "position"))
    return Provenance(
        np.arange(number + 1), np.asarray(length, np.int64), *places, start=np.zeros(number, np.int64)
    )
