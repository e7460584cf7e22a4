"""A few rows of a version with their segments, read with page checksums.

Rows name the input file of a text with the source's name at the time of tokenizing. A
mixture may give the same tokens another source name; the inputs of its parents say
which of its sources a document belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias, final

import pyarrow as pa

from tokenlake.base.columns import columns_for
from tokenlake.base.json_text import json_values
from tokenlake.base.numbers import count, plural
from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.etl.tokenizers.files import TOKENIZER_JSON
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.ledger import InputFileEntry, ShardEntry
from tokenlake.runtime.store.manifest import Manifest

Place: TypeAlias = tuple[str, str]
"""Source and path of an input file, as rows name it."""

_HEAD: Final = 360  # characters that are shown of the beginning of a long text
_TAIL: Final = 120  # characters that are shown of its end


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """A run of ids of one document.

    Attributes:
        source: Source of the document, by its name at the time of tokenizing.
        path: Path of its input file.
        position: Row number or byte offset of the document in that file.
        start: Index of the run's first id within the document.
        ids: Ids of the run.
        part: Part of a preference: prompt, chosen, rejected or completion; None for
            other datasets.
        learned: True for each id that counts toward the loss; None for a dataset
            without a loss mask, in which all do.
    """

    source: str
    path: str
    position: int
    start: int
    ids: tuple[int, ...]
    part: str | None = None
    learned: tuple[bool, ...] | None = None

    def origin(self, names: Mapping[Place, str]) -> str:
        """Return the document of the run: ``web  a.jsonl:17``.

        In a mixture that names the source otherwise: ``web (books)  a.jsonl:17``.

        Args:
            names: Mixture's source name of each input file.
        """
        source = names.get((self.source, self.path), self.source)
        if source != self.source:
            source = f"{source} ({self.source})"
        return f"{source}  {self.path}:{self.position}"

    def place(self, begin: int) -> str:
        """Return the ids of the run in its row, and its place in the document.

        Examples: ``ids 0-511, from token 17 of its document, 40 in the loss``; for a
        part of a preference, ``12 tokens``.

        Args:
            begin: Index of the run's first id within its row.
        """
        # Each part of a preference is in a column of its own.
        if self.part:
            return plural(len(self.ids), "token")
        last_id = begin + len(self.ids) - 1
        words = f"ids {begin}-{last_id}"
        if self.start:
            words += f", from token {count(self.start)} of its document"
        if self.learned is not None:
            words += f", {count(sum(self.learned))} in the loss"
        return words

    def runs(self) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """Yield pairs (True if the ids count toward the loss, neighbouring ids).

        Without a mask all ids count.
        """
        if self.learned is None:
            yield True, self.ids
            return
        pairs = zip(self.learned, self.ids, strict=True)
        for is_learned, run in groupby(pairs, key=itemgetter(0)):
            yield is_learned, tuple(token for _, token in run)


@final
@dataclass(frozen=True, slots=True)
class Sequence:
    """One row of a version.

    Attributes:
        split: Name of the split.
        row: Index of the row in the split.
        shard: Path of the shard.
        shard_row: Index of the row in the shard.
        segments: Segments in the order of the row.
        padding: Number of padding ids.
        kept: Values of the additional fields, by name.
        label: True for a good answer of a judged dataset, False for a bad one; None for
            other datasets.
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
        """Return the contents in words: ``2,048 tokens in 3 segments, 17 padding``."""
        tokens = sum(len(segment.ids) for segment in self.segments)
        words = f"{plural(tokens, 'token')} in {plural(len(self.segments), 'segment')}"
        if self.padding:
            words += f", {count(self.padding)} padding"
        if self.label is True:
            words += ", labelled good"
        elif self.label is False:
            words += ", labelled bad"
        return words


def read_sequences(
    store: ReadStore, manifest: Manifest, split: str | None, first: int, number: int
) -> Iterator[Sequence]:
    """Yield rows ``first .. first + number`` of a split, fewer at its end.

    Only their row groups are read.

    Args:
        store: Store that holds the version.
        manifest: Manifest of the version.
        split: Name of the split; None: ``train``, or else the first split.
        first: Index of the first row, in the order of the manifest's shards; a negative
            one counts from the end.
        number: Number of rows.

    Raises:
        ConfigError: The split does not exist, or `first` is past its end.
        IntegrityError: A shard is missing or damaged.
    """
    # 1. The split.
    version = f"{manifest.dataset}@v{manifest.version}"
    split_names = list(manifest.splits)
    if not split_names:
        raise ConfigError(f"{version} has no rows")
    if split is None:
        split = split_names[0]
        if "train" in split_names:
            split = "train"
    if split not in split_names:
        raise ConfigError(
            f"{version} has no split {split!r}; expected one of {', '.join(split_names)}"
        )

    # 2. The first row. A negative one counts from the end, and no further than to the
    #    beginning.
    total_rows = manifest.splits[split].rows
    start_row = first
    if first < 0:
        start_row = max(0, total_rows + first)
    if start_row >= total_rows:
        raise ConfigError(
            f"row {first} is past the end: split {split!r} of {version} has {total_rows} rows (0 to {total_rows - 1})"
        )

    # 3. The rows. Their places count in the split and in the shard.
    inputs = {entry.file_id: entry for entry in manifest.inputs}
    with StoredRows(store, manifest, split) as stored:
        for group, begin, end in stored.ranges(start_row, start_row + number):
            shard, group_in_shard = stored.shard_of(group)
            batch = stored.read(group)
            first_row = stored.row_of(group)
            first_shard_row = shard.row_groups[group_in_shard]
            for row in range(begin, end):
                place = _RowPlace(shard, first_row + row, first_shard_row + row)
                values = _values_of(batch.slice(row, 1))
                if manifest.preference is not None:
                    yield _preference_sequence(manifest, place, values, inputs)
                else:
                    yield _token_sequence(manifest, place, values, inputs)


def _values_of(row: pa.RecordBatch) -> dict[str, Any]:
    """Return the values of one row.

    Those for which Python has no type, such as the year 33658, are texts.
    """
    cells: dict[str, Any] = {}
    for column_name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            cells[column_name] = column.to_pylist()[0]
        except (OverflowError, ValueError):
            cells[column_name] = json_values(column)[0]
    return cells


@final
@dataclass(frozen=True, slots=True)
class _RowPlace:
    """Place of a row.

    Attributes:
        shard: Shard that holds the row.
        row: Index of the row in its split.
        shard_row: Index of the row in its shard.
    """

    shard: ShardEntry
    row: int
    shard_row: int


def _additional_fields(manifest: Manifest, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields that are kept beside the ids, by name."""
    kept_fields = manifest.config.get("build", {}).get("kept", ())
    return {name: values[name] for name, _ in kept_fields}


def _preference_sequence(
    manifest: Manifest,
    place: _RowPlace,
    values: dict[str, Any],
    inputs: dict[int, InputFileEntry],
) -> Sequence:
    """Return a row of a preference dataset, with one segment for each part."""
    assert manifest.preference is not None
    # The ids of each column, by the parts that it holds.
    runs: dict[tuple[str, ...], list[int]] = {}
    for column in columns_for(*manifest.preference):
        if column.holds == "ids":
            runs[column.parts] = values[column.name]

    entry = inputs[values["file"]]
    segments: list[Segment] = []
    for parts, run in runs.items():
        # The column of an answer may begin with the prompt, which has a column of its
        # own.
        prompt = runs.get(parts[:-1], ())
        answer = tuple(run[len(prompt) :])
        segments.append(
            Segment(entry.source, entry.path, values["position"], 0, answer, parts[-1])
        )
    return Sequence(
        split=place.shard.split,
        row=place.row,
        shard=place.shard.path,
        shard_row=place.shard_row,
        segments=tuple(segments),
        padding=0,
        kept=_additional_fields(manifest, values),
        label=values.get("label"),
    )


def _token_sequence(
    manifest: Manifest,
    place: _RowPlace,
    values: dict[str, Any],
    inputs: dict[int, InputFileEntry],
) -> Sequence:
    """Return a packed row, or a row of one document.

    A packed row has one segment for each piece of a document.
    """
    # 1. The pieces of the row: (length, provenance) of each, and the first id.
    ids: list[int] = values["input_ids"]
    learned: list[bool] | None = values.get("loss_mask")
    if manifest.kind == "packed":
        lengths: list[int] = values["segment_lengths"]
        documents: list[dict[str, int]] = values["documents"]
        begin = 0  # padding is at the end of a packed row
    else:
        mask: list[int] = values.get("attention_mask") or [1] * len(ids)
        lengths = [sum(mask)]
        documents = [{**values, "start": 0}]
        begin = mask.index(1)  # padding may be before the only document

    # 2. Segments, one after the other.
    segments: list[Segment] = []
    for length, document in zip(lengths, documents, strict=True):
        entry = inputs[document["file"]]
        end = begin + length
        segment_learned: tuple[bool, ...] | None = None
        if learned is not None:
            segment_learned = tuple(learned[begin:end])
        segments.append(
            Segment(
                source=entry.source,
                path=entry.path,
                position=document["position"],
                start=document["start"],
                ids=tuple(ids[begin:end]),
                learned=segment_learned,
            )
        )
        begin = end
    return Sequence(
        split=place.shard.split,
        row=place.row,
        shard=place.shard.path,
        shard_row=place.shard_row,
        segments=tuple(segments),
        padding=len(ids) - sum(lengths),
        kept=_additional_fields(manifest, values),
    )


def mixed_as(catalog: Catalog, manifest: Manifest) -> dict[Place, str]:
    """Return the mixture's source name of every input file of exactly one source.

    The result is empty for a version that is no mixture, and lacks the files of parents
    that left the store.
    """
    if manifest.mixture is None:
        return {}
    # A file that two sources of the mixture share could be of either.
    names_by_place: dict[Place, set[str]] = {}
    for source_name, source in manifest.mixture.sources.items():
        try:
            parent = catalog.manifest(source.dataset, source.version)
        except NotFoundError:
            continue
        for entry in parent.inputs:
            place = (entry.source, entry.path)
            names_by_place.setdefault(place, set()).add(source_name)
    name_by_place: dict[Place, str] = {}
    for place, source_names in names_by_place.items():
        if len(source_names) == 1:
            name_by_place[place] = source_names.pop()
    return name_by_place


def decoders_of(
    store: ReadStore,
    manifest: Manifest,
    cache: MutableMapping[str, Decoder] | None = None,
) -> dict[str, Decoder]:
    """Return a decoder for each source that rows name.

    The sources of a mixture have one tokenizer.

    Args:
        store: Store that holds the version.
        manifest: Manifest of the version.
        cache: Decoders by the hash of their tokenizer.json, for a caller that reads
            many versions; new ones are added. Default: none is shared.

    Raises:
        NotFoundError: The version has no tokenizer.
    """
    # Loading a tokenizer takes time: versions with the same one share its decoder.
    decoders: dict[str, Decoder] = {}
    for source, description in manifest.tokenizer.items():
        digest = description.get("files", {}).get(TOKENIZER_JSON)
        decoder: Decoder | None = None
        if cache is not None and digest is not None:
            decoder = cache.get(digest)
        if decoder is None:
            decoder = Decoder.of(store, manifest, source)
        if cache is not None and digest is not None:
            cache[digest] = decoder
        decoders[source] = decoder
    if manifest.mixture is not None and decoders:
        # Rows name the sources of the parents, which may differ from the mixture's
        # names.
        shared_decoder = next(iter(decoders.values()))
        for entry in manifest.inputs:
            decoders.setdefault(entry.source, shared_decoder)
    return decoders


def shortened(text: str) -> tuple[str, int, str]:
    """Return the beginning of a text, the number of characters left out, and its end.

    A short text is whole.
    """
    text = text.rstrip("\n")
    # Leaving out less than the note about it takes would make the text longer.
    hidden = len(text) - _HEAD - _TAIL
    if hidden <= _HEAD // 4:
        return text, 0, ""
    return text[:_HEAD], hidden, text[-_TAIL:]
