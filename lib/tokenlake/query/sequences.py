"""A few rows of a version with their segments, read with page checksums, and what a mixture calls their sources.

Rows name the file that a text came from, with the source's name of that time. A mixture may call the same tokens
otherwise, and which of its sources a document is of follows from the inputs of the parents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias, final

from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.numbers import count, plural
from tokenlake.preference_columns import TrainerColumn, columns_for
from tokenlake.reading.version import StoredRows
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog
from tokenlake.store.entries import InputFileEntry, ShardEntry
from tokenlake.store.manifest import Manifest
from tokenlake.tokenizers.decode import Decoder

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
    name = _split(manifest, split)
    total = manifest.splits[name].rows
    start = first if first >= 0 else max(0, total + first)
    if start >= total:
        where = f"{manifest.dataset}@v{manifest.version}"
        raise ConfigError(
            f"row {first} is past the end: split {name!r} of {where} has {total} rows (0 to {total - 1})"
        )
    inputs = {entry.file_id: entry for entry in manifest.inputs}
    with StoredRows(store, manifest, name) as stored:
        for group, low, high in stored.ranges(start, start + number):
            shard, index = stored.shard_of(group)
            batch, begin = stored.read(group), stored.row_of(group)
            for row in range(low, high):
                values = batch.slice(row, 1).to_pylist()[0]
                yield _sequence(manifest, shard, begin + row, shard.row_groups[index] + row, values, inputs)


def _split(manifest: Manifest, asked: str | None) -> str:
    names = list(manifest.splits)
    if not names:
        raise ConfigError(f"{manifest.dataset}@v{manifest.version} has no rows")
    if asked is None:
        return "train" if "train" in names else names[0]
    if asked not in names:
        raise ConfigError(
            f"{manifest.dataset}@v{manifest.version} has no split {asked!r}; expected one of {', '.join(names)}"
        )
    return asked


def _sequence(
    manifest: Manifest,
    shard: ShardEntry,
    row: int,
    shard_row: int,
    values: dict[str, Any],
    inputs: dict[int, InputFileEntry],
) -> Sequence:
    kept = {name: values[name] for name, _ in manifest.config.get("build", {}).get("kept", ())}
    if manifest.preference is not None:
        entry = inputs[values["file"]]
        parts = _parts(columns_for(*manifest.preference), values)
        shown = tuple(
            Segment(entry.source, entry.path, values["position"], 0, tuple(run), part) for part, run in parts
        )
        return Sequence(shard.split, row, shard.path, shard_row, shown, 0, kept, values.get("label"))
    ids: list[int] = values["input_ids"]
    packed = manifest.kind == "packed"
    mask: list[int] = values.get("attention_mask") or [1] * len(ids)
    lengths: list[int] = values["segment_lengths"] if packed else [sum(mask)]
    documents: list[dict[str, int]] = values["documents"] if packed else [{**values, "start": 0}]
    learned: list[bool] | None = values.get("loss_mask")
    segments: list[Segment] = []
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


def _parts(columns: tuple[TrainerColumn, ...], values: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield the parts of a preference; an answer without the prompt that its column may begin with."""
    ids: dict[tuple[str, ...], list[int]] = {
        column.parts: values[column.name] for column in columns if column.holds == "ids"
    }
    for parts, run in ids.items():
        yield parts[-1], run[len(ids.get(parts[:-1], ())) :]


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
