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
        """``web  a.jsonl:17``; in a mixture that calls the source otherwise, ``web
        (books)  a.jsonl:17``.
        """
        source = names.get((self.source, self.path), self.source)
        if source != self.source:
            source = f"{source} ({self.source})"
        return f"{source}  {self.path}:{self.position}"

    def place(self, begin: int) -> str:
        """``ids 0-511, from token 17 of its document, 40 in the loss``; of a
        preference's part, ``12 tokens``.

        Args:
            begin: Index of the run's first id within its row.
        """
        if self.part:
            return plural(len(self.ids), "token")
        start = (
            f", from token {count(self.start)} of its document" if self.start else ""
        )
        learned = (
            "" if self.learned is None else f", {count(sum(self.learned))} in the loss"
        )
        return f"ids {begin}-{begin + len(self.ids) - 1}{start}{learned}"

    def runs(self) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """Yield pairs (True if the ids count toward the loss, neighbouring ids);
        without a mask all ids count.
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
        """``2,048 tokens in 3 segments, 17 padding``."""
        tokens = plural(sum(len(segment.ids) for segment in self.segments), "token")
        padding = f", {count(self.padding)} padding" if self.padding else ""
        labelled = (
            ""
            if self.label is None
            else f", labelled {'good' if self.label else 'bad'}"
        )
        return f"{tokens} in {plural(len(self.segments), 'segment')}{padding}{labelled}"


def read_sequences(
    store: ReadStore, manifest: Manifest, split: str | None, first: int, number: int
) -> Iterator[Sequence]:
    """Yield rows ``first .. first + number`` of a split, fewer where it ends; reads
    only their row groups.

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
    version = f"{manifest.dataset}@v{manifest.version}"
    names = list(manifest.splits)
    if not names:
        raise ConfigError(f"{version} has no rows")
    name = split
    if name is None:
        name = "train" if "train" in names else names[0]
    if name not in names:
        raise ConfigError(
            f"{version} has no split {name!r}; expected one of {', '.join(names)}"
        )

    total = manifest.splits[name].rows
    start = first if first >= 0 else max(0, total + first)
    if start >= total:
        raise ConfigError(
            f"row {first} is past the end: split {name!r} of {version} has {total} rows (0 to {total - 1})"
        )

    inputs = {entry.file_id: entry for entry in manifest.inputs}
    with StoredRows(store, manifest, name) as stored:
        for group, low, high in stored.ranges(start, start + number):
            shard, group_in_shard = stored.shard_of(group)
            batch = stored.read(group)
            first_row = stored.row_of(group)
            first_shard_row = shard.row_groups[group_in_shard]
            for row in range(low, high):
                place = _RowPlace(shard, first_row + row, first_shard_row + row)
                values = _values_of(batch.slice(row, 1))
                if manifest.preference is not None:
                    yield _preference_sequence(manifest, place, values, inputs)
                else:
                    yield _token_sequence(manifest, place, values, inputs)


def _values_of(row: pa.RecordBatch) -> dict[str, Any]:
    """Return the values of one row; those for which Python has no type, such as the
    year 33658, as text.
    """
    cells: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            cells[name] = column.to_pylist()[0]
        except (OverflowError, ValueError):
            cells[name] = json_values(column)[0]
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
    return {
        name: values[name]
        for name, _ in manifest.config.get("build", {}).get("kept", ())
    }


def _preference_sequence(
    manifest: Manifest,
    place: _RowPlace,
    values: dict[str, Any],
    inputs: dict[int, InputFileEntry],
) -> Sequence:
    """Return a row of a preference dataset, with one segment for each part."""
    assert manifest.preference is not None
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
    """Return a packed row with one segment for each piece of a document, or a row of
    one document.
    """
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

    segments: list[Segment] = []
    for length, document in zip(lengths, documents, strict=True):
        entry = inputs[document["file"]]
        end = begin + length
        segments.append(
            Segment(
                source=entry.source,
                path=entry.path,
                position=document["position"],
                start=document["start"],
                ids=tuple(ids[begin:end]),
                learned=None if learned is None else tuple(learned[begin:end]),
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
    """Return the mixture's source name of every input file that belongs to exactly one
    of its sources.

    The result is empty for a version that is no mixture, and lacks the files of parents
    that left the store.
    """
    if manifest.mixture is None:
        return {}
    names_by_place: dict[Place, set[str]] = {}
    for name, source in manifest.mixture.sources.items():
        try:
            parent = catalog.manifest(source.dataset, source.version)
        except NotFoundError:
            continue
        for entry in parent.inputs:
            names_by_place.setdefault((entry.source, entry.path), set()).add(name)
    return {
        place: names.pop() for place, names in names_by_place.items() if len(names) == 1
    }


def decoders_of(
    store: ReadStore,
    manifest: Manifest,
    cache: MutableMapping[str, Decoder] | None = None,
) -> dict[str, Decoder]:
    """Return a decoder for each source that rows name; the sources of a mixture have
    one tokenizer.

    Args:
        store: Store that holds the version.
        manifest: Manifest of the version.
        cache: Decoders by the hash of their tokenizer.json, for a caller that reads
            many versions; new ones are added. Default: none is shared.

    Raises:
        NotFoundError: The version has no tokenizer.
    """
    decoders: dict[str, Decoder] = {}
    for name, described in manifest.tokenizer.items():
        digest = described.get("files", {}).get(TOKENIZER_JSON)
        decoder = None
        if cache is not None and digest is not None:
            decoder = cache.get(digest)
        if decoder is None:
            decoder = Decoder.of(store, manifest, name)
        if cache is not None and digest is not None:
            cache[digest] = decoder
        decoders[name] = decoder
    if manifest.mixture is not None and decoders:
        # Rows name the sources of the parents, which may differ from the mixture's
        # names.
        shared = next(iter(decoders.values()))
        for entry in manifest.inputs:
            decoders.setdefault(entry.source, shared)
    return decoders


def shortened(text: str) -> tuple[str, int, str]:
    """Return the beginning of a text, the number of characters left out, and its
    end; a short text is whole.
    """
    text = text.rstrip("\n")
    hidden = len(text) - _HEAD - _TAIL
    if hidden <= _HEAD // 4:
        return text, 0, ""
    return text[:_HEAD], hidden, text[-_TAIL:]
