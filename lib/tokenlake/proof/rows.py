"""Rows: which of them some steps delivered, and what each holds of takedown lists and evaluation sets.

What some steps delivered is found without going through them. A lane gives the rows of a dataset epoch by epoch, so
that how many rows it gave before a step says which: whole epochs, and the first places of one more. Of these, whole
windows need no permutation (:meth:`EpochOrder.taken`). What is added up takes as long as the row groups of a dataset
are many, whatever the number of steps.

The columns that say where ids come from are read once, less than a hundredth of the files.

The overlap of an evaluation set and of rows are n-grams of ids that both have. An n-gram is n ids next to each other in
one document of the evaluation set, or in one segment of a row; it is told by 64 bits that follow from its ids, so that
two of 10^9 different ones are taken for the same with a chance of about ``10^9 * 10^9 / 2^64 = 0.05``. What lies across
the end of a row, where a document goes on in the next, is not counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.arrays import Bools, Int64, Ragged, offsets_of
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.explain import Provenance
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.plan import BatchPlan
from tokenlake.mixing.order import EpochOrder, StoredOrder
from tokenlake.mixing.random import UInt64, splitmix64
from tokenlake.store.ledger import InputFileEntry

_PIECES: Final = ["segment_lengths", "documents"]
_PLACE: Final = ["file", "position"]


@final
@dataclass(frozen=True, eq=False, slots=True)
class RowContents:
    """Of the rows of a dataset.

    Attributes:
        sums: source -> ids of it in the rows before each row, and in all, int64[rows + 1].
        marked: rows with a piece of the documents asked for, ascending, int64[m].
        stored: which of these documents have a piece in any row.
    """

    sums: Mapping[str, Int64]
    marked: Int64
    stored: frozenset[tuple[int, ...]]

    @classmethod
    def of(cls, dataset: Dataset, takedown: Takedown | None) -> RowContents:
        """Read a dataset; IntegrityError where a file is damaged."""
        entries = sorted(dataset.manifest.inputs, key=lambda entry: entry.file_id)
        files = np.array([entry.file_id for entry in entries], np.int64)
        names = sorted({entry.source for entry in entries})
        source_of = np.array([names.index(entry.source) for entry in entries], np.int64)
        ids = np.zeros((len(names), len(dataset)), np.int64)
        wanted = _WantedDocuments(np.zeros((0, 2), np.int64) if takedown is None else takedown.among(entries))
        marked = list[Int64]()
        lengths = None
        if dataset.kind != "packed":  # ids of each row, of all its columns of ids
            ragged = dataset.rows.ragged
            each = (ragged.lengths(name).astype(np.int64) for name in ragged.columns)
            lengths = sum(each, np.zeros(len(dataset), np.int64))
        for group in range(len(dataset.rows.group_rows)):
            first = dataset.rows.row_of(group)
            if lengths is None:
                pieces = Provenance.of(dataset.rows.read(group, _PIECES))
            else:
                some = lengths[first : first + int(dataset.rows.group_rows[group])]
                pieces = Provenance.of_documents(dataset.rows.read(group, _PLACE), some)
            row = first + np.repeat(np.arange(len(pieces.offsets) - 1), np.diff(pieces.offsets))
            file = np.minimum(np.searchsorted(files, pieces.file), len(files) - 1)
            if (files[file] != pieces.file).any():
                raise IntegrityError(f"{dataset.name}: row group {group} is of a file that no input is")
            np.add.at(ids, (source_of[file], row), pieces.length)
            marked.append(row[wanted.held(pieces.file, pieces.position)])
        sums = {name: offsets_of(each) for name, each in zip(names, ids, strict=True)}
        return cls(sums, np.unique(np.concatenate([np.zeros(0, np.int64), *marked])), frozenset(wanted.found))


@final
@dataclass(frozen=True, slots=True)
class Takedown:
    """A list of documents: a Parquet file with the columns `file` and `position`.

    Attributes:
        sha256: of the file.
        documents: (identity of an input file or its path, position) of each, every one once.
    """

    sha256: str
    documents: frozenset[tuple[int | str, int]]

    @classmethod
    def read(cls, path: Path) -> Takedown:
        """Read a list; ConfigError where it is none."""
        try:
            data = path.read_bytes()
            table = pq.read_table(pa.BufferReader(data), columns=_PLACE)
            if not pa.types.is_integer(table["position"].type):
                raise ValueError(f"position is of type {table['position'].type}")
            rows: Any = zip(table["file"].to_pylist(), table["position"].to_pylist(), strict=True)
            found = frozenset((_file(file), int(position)) for file, position in rows)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ConfigError(
                f"takedown {path}: {error}; expected a Parquet file with the columns `file` (the identity that "
                "`documents` has, or the path of an input) and `position` (a whole number)"
            ) from error
        if not found:
            raise ConfigError(f"takedown {path} lists no documents")
        return cls(hashlib.sha256(data).hexdigest(), found)

    def among(self, entries: Iterable[InputFileEntry]) -> Int64:
        """Return the documents of these input files, int64[n, 2]; a path is that of an input, or how its path ends."""
        found = list[tuple[int, int]]()
        names: dict[int | str, list[int]] = {}
        for entry in entries:
            parts = entry.path.split("/")
            for name in (entry.file_id, *("/".join(parts[index:]) for index in range(len(parts)))):
                names.setdefault(name, []).append(entry.file_id)
        for file, position in self.documents:
            found += [(each, position) for each in dict.fromkeys(names.get(file, ()))]
        return np.array(sorted(set(found)), np.int64).reshape(-1, 2)


@final
class _WantedDocuments:
    """Documents that are looked for, int64[n, 2], and which of them were found."""

    def __init__(self, wanted: Int64) -> None:
        self._keys = np.sort(_keys(wanted[:, 0], wanted[:, 1]))
        self._wanted = set(map(tuple, wanted.tolist()))
        self.found = set[tuple[int, ...]]()

    def held(self, file: Int64, position: Int64) -> Int64:
        """Return which pieces are of the documents, int64[m]."""
        if not len(self._keys):
            return np.zeros(0, np.int64)
        keys = _keys(file, position)
        maybe = np.flatnonzero(
            self._keys[np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)] == keys
        )
        pairs = list(zip(file[maybe].tolist(), position[maybe].tolist(), strict=True))
        self.found |= self._wanted.intersection(pairs)
        return maybe[[pair in self._wanted for pair in pairs]]


def _keys(file: Int64, position: Int64) -> UInt64:
    return splitmix64(file.astype(np.uint64)) ^ position.astype(np.uint64)


def _file(value: Any) -> int | str:
    if isinstance(value, str) and not value.lstrip("-").isdecimal():
        return value.removeprefix("file://").removeprefix("./")
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number


METHOD: Final = "distinct n-grams of ids inside a document, told by 64 bits; of rows, inside a segment"
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_TEXT: Final = "text"
_SIEVE: Final = 20  # bits by which most n-grams are told to be none of the sets'


@final
@dataclass(frozen=True, eq=False, slots=True)
class EvaluationSet:
    """Documents of ids that are not to be trained on.

    Attributes:
        identity: what it was read from, JSON-able, with a hash.
        documents: the ids of each.
    """

    identity: dict[str, str]
    documents: Ragged

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> EvaluationSet:
        """Take the documents, or the segments of rows, of a split of a version."""
        parts = [ids_of(dataset, group) for group in range(len(dataset.rows.group_rows))]
        ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part, _ in parts)])
        lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part, _ in parts)])
        identity = {"dataset": dataset.name, "manifest": dataset.manifest.sha256}
        return cls(identity, Ragged(ids, offsets_of(lengths)))

    @classmethod
    def of_texts(cls, path: Path, tokenizer: Any) -> EvaluationSet:
        """Tokenize the column `text` of a Parquet file or of JSON Lines; ConfigError where there is none."""
        try:
            data = path.read_bytes()
            if path.suffix == ".parquet":
                texts: Any = pq.read_table(pa.BufferReader(data), columns=[_TEXT])[_TEXT].to_pylist()
            else:
                texts = [json.loads(line)[_TEXT] for line in data.splitlines() if line.strip()]
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ConfigError(
                f"evaluation set {path}: {error!r}; expected a Parquet file or JSON Lines with the column {_TEXT!r}"
            ) from error
        found = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
        ids = np.array([one for each in found for one in each], np.int32)
        documents = Ragged(ids, offsets_of([len(each) for each in found]))
        return cls({"sha256": hashlib.sha256(data).hexdigest()}, documents)


def overlap_of(
    sets: Mapping[str, EvaluationSet], read: Iterable[tuple[Dataset, Int64]], n: int
) -> dict[str, dict[str, Any]]:
    """Count what rows have in common with evaluation sets.

    Args:
        sets: by name.
        read: datasets, and how often each of their rows was read, int64[rows].
        n: ids of an n-gram.

    Returns:
        of each set: `identity`, `documents`, how many of them are `short` of n ids, its distinct `ngrams`, how many of
        these were `found`, `documents_with` any of them, and `rows_with` any of them.

    Raises:
        ConfigError: n is no number from 1 on.
        IntegrityError: a file is damaged.
    """
    if n < 1:
        raise ConfigError(f"n-grams of {n} ids; expected 1 or more")
    grams = {name: _ngrams(each.documents, n) for name, each in sets.items()}
    known = np.unique(np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in grams.values())]))
    place = {name: np.searchsorted(known, hashes) for name, (hashes, _) in grams.items()}
    of_set = {name: _marked(len(known), where) for name, where in place.items()}
    found, rows = np.zeros(len(known), np.bool_), dict.fromkeys(sets, 0)
    for index, row in _hits(read, known, n):
        found[index] = True
        for name, there in of_set.items():
            rows[name] += len(np.unique(row[there[index]]))
    return {
        name: {
            "identity": each.identity,
            "documents": len(each.documents),
            "short": int((each.documents.lengths < n).sum()),
            "ngrams": int(of_set[name].sum()),
            "found": int((of_set[name] & found).sum()),
            "documents_with": len(np.unique(grams[name][1][found[place[name]]])),
            "rows_with": rows[name],
        }
        for name, each in sets.items()
    }


def ids_of(dataset: Dataset, group: int) -> tuple[Ragged, Int64]:
    """Return the segments, or documents, of a row group, and the row of each, int64[n]; ConfigError for preferences."""
    stored = dataset.rows
    if dataset.kind == "preference":
        raise ConfigError(
            f"{dataset.name} is of kind preference, whose n-grams are not counted; leave out evaluation"
        )
    if dataset.kind != "packed":
        found = stored.ragged.read(group, loss_mask=False)
        first = stored.row_of(group)
        lengths = stored.ragged.lengths("input_ids")[first : first + found.rows].astype(np.int64)
        begin = np.array(found.begins["input_ids"][:-1], np.int64)
        return Ragged.taken(
            np.frombuffer(found.views["input_ids"], np.int32), begin, begin + lengths
        ), np.arange(found.rows)
    batch: Any = stored.read(group, ["input_ids", "segment_lengths"])
    ids = batch.column("input_ids").flatten().to_numpy().reshape(batch.num_rows, -1)
    of_rows = batch.column("segment_lengths")
    row = np.repeat(np.arange(batch.num_rows), of_rows.value_lengths().to_numpy())
    lengths = of_rows.flatten().to_numpy().astype(np.int64)
    before = np.cumsum(lengths) - lengths
    begin = before - before[np.searchsorted(row, row)] + row * ids.shape[1]
    return Ragged.taken(ids.reshape(-1), begin, begin + lengths), row


def _hits(read: Iterable[tuple[Dataset, Int64]], known: UInt64, n: int) -> Iterator[tuple[Int64, Int64]]:
    """Yield, row group by row group, which of the known n-grams rows hold, and the row of each, int64[m] both."""
    sieve = _marked(1 << _SIEVE, _sieved(known))
    for dataset, times in read:
        for group, size in enumerate(dataset.rows.group_rows.tolist()):
            first = dataset.rows.row_of(group)
            was_read = times[first : first + size] > 0
            if not was_read.any() or not len(known):
                continue
            segments, row = ids_of(dataset, group)
            segments, row = segments.select(was_read[row]), row[was_read[row]]
            hashes, segment = _ngrams(segments, n)
            maybe = np.flatnonzero(sieve[_sieved(hashes)])
            index = np.minimum(np.searchsorted(known, hashes[maybe]), len(known) - 1)
            same = known[index] == hashes[maybe]
            yield index[same], row[segment[maybe[same]]]


def _ngrams(documents: Ragged, n: int) -> tuple[UInt64, Int64]:
    """Return 64 bits for each n-gram, uint64[m], and the document that it is in, int64[m]."""
    many = np.maximum(documents.lengths - n + 1, 0)
    document = np.repeat(np.arange(len(many)), many)
    if not len(document):
        return np.zeros(0, np.uint64), document
    words = splitmix64(documents.ids.astype(np.uint64))
    hashes = np.zeros(len(words) - n + 1, np.uint64)
    for offset in range(n):
        hashes *= _FACTOR
        hashes += words[offset : offset + len(hashes)]
    inside = np.arange(len(document)) - np.repeat(offsets_of(many)[:-1], many)
    return splitmix64(hashes[documents.offsets[document] + inside]), document


def _sieved(hashes: UInt64) -> Int64:
    return (hashes >> np.uint64(64 - _SIEVE)).astype(np.int64)


def _marked(size: int, index: npt.NDArray[Any]) -> Bools:
    found = np.zeros(size, np.bool_)
    found[index] = True
    return found


@final
@dataclass(frozen=True, eq=False, slots=True)
class Delivery:
    """What some steps took of one dataset, lane by lane.

    Attributes:
        source: number of the dataset in the plan.
        order: of its rows.
        passes: of the plan, in which lanes begin to count.
        epoch: of the dataset, likewise.
        begin, end: rows that each lane gave since then, before the steps and after them, int64[lanes] both.
    """

    source: int
    order: EpochOrder | StoredOrder
    passes: int
    epoch: int
    begin: Int64
    end: Int64

    @property
    def rows(self) -> int:
        """How many were delivered."""
        return int((self.end - self.begin).sum())

    def total(self, sums: Int64) -> int:
        """Add up what each row weighs, as often as it was delivered.

        Args:
            sums: what the rows before each row weigh, and what all weigh, int64[rows + 1].
        """
        found = 0
        for counts, sign in ((self.end, 1), (self.begin, -1)):
            whole, parts = self._epochs(counts)
            found += sign * whole * int(sums[-1])
            for begin, end in parts:
                found += sign * int((sums[end] - sums[begin]).sum())
        return found

    def times(self) -> Int64:
        """Return how often each of the dataset's rows was delivered, int64[rows]."""
        changes = np.zeros(self.order.rows + 1, np.int64)
        for counts, sign in ((self.end, 1), (self.begin, -1)):
            whole, parts = self._epochs(counts)
            changes[0] += sign * whole
            for begin, end in parts:
                np.add.at(changes, begin, sign)
                np.add.at(changes, end, -sign)
        return np.cumsum(changes[:-1])

    def seen(self, group: Int64, row: Int64) -> Int64:
        """Return which of some rows, int64[n] both, are delivered in these steps, in no order.

        Returns:
            of each delivery the number in its lane, the epoch, and the index among the rows, int64[3, m].
        """
        each, found = self.order.lengths, [np.empty((3, 0), np.int64)]
        lanes = zip(self.begin.tolist(), self.end.tolist(), each.tolist(), strict=True)
        spans = [range(begin // rows, -(-end // rows)) for begin, end, rows in lanes if begin < end]
        for epoch in sorted(set[int]().union(*spans)):
            lane, place = self.order.place_of(self.epoch + epoch, group, row)
            number = epoch * each[lane] + place
            there = np.flatnonzero((number >= self.begin[lane]) & (number < self.end[lane]))
            found.append(np.stack([number[there], np.full(len(there), self.epoch + epoch), there]))
        return np.concatenate(found, axis=1)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what a verifier computes the rows from."""
        seed = self.order.seed if isinstance(self.order, EpochOrder) else None
        counts = {"begin": self.begin.tolist(), "end": self.end.tolist()}
        return {"source": names[self.source], "seed": seed, "epoch": self.epoch, **counts}

    def _epochs(self, counts: Int64) -> tuple[int, Iterator[tuple[Int64, Int64]]]:
        """Return how many epochs all lanes gave whole, and the stored rows, as ranges, of each that some did not."""
        each = self.order.lengths
        there, of = counts[each > 0], each[each > 0]  # lanes without rows have no say
        whole = int((there // of).min(initial=np.iinfo(np.int64).max))
        last = int((-(-there // of)).max(initial=0))
        parts = (
            self.order.taken(self.epoch + epoch, np.clip(counts - epoch * each, 0, each))
            for epoch in range(whole, last)
        )
        return whole, parts


def deliveries_of(plan: BatchPlan, first: int, end: int) -> list[Delivery]:
    """Return what the steps from `first` to before `end` took of the datasets of a plan.

    Raises:
        ConfigError: there are no such steps, batches are made by length, or sources are shortened.
    """
    if not 0 <= first <= end:
        raise ConfigError(
            f"steps {first} to {end}: expected a first step from 0 on, and an end that is not before it"
        )
    if plan.steps.bucketed:
        raise ConfigError(
            "the loader puts rows into buckets by their length, whose order a statement does not count; "
            "pad to `multiple` or `length` instead"
        )
    orders = plan.stream(0).orders
    for name, order, stored in zip(plan.datasets, orders, plan.sources, strict=True):
        if order.rows != stored.rows:
            raise ConfigError(
                f"the mixture uses {order.rows:,} of the {stored.rows:,} rows of {name} (max_fraction, budgets), and a "
                "statement counts whole sources; expected a mixture that shortens none"
            )
    passes = range(plan.steps.position(first).passes, plan.steps.position(end).passes + 1)
    if isinstance(plan.data, Dataset) and (len(passes) == 1 or not plan.options.drop_last):
        passes = passes[:1]  # they leave out nothing, so that they follow each other in the epochs, too
        return list(_since(plan, passes[0], first, end))
    edges = [first, *(plan.steps.begin(number) for number in passes[1:]), end]
    return [
        each
        for number, span in zip(passes, pairwise(edges), strict=True)
        for each in _since(plan, number, *span)
    ]


def steps_of_rows(plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64) -> tuple[int, int] | None:
    """Return the first and the last step of a delivery that delivers any of some rows, int64[n] both; None: none."""
    first = _edge(plan, delivery, group, row, last=False)
    last = _edge(plan, delivery, group, row, last=True)
    return None if first is None or last is None else (first, last)


def _edge(plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64, *, last: bool) -> int | None:
    """Return the first step that delivers any of the rows, or the last one; None: none does."""
    each, found = delivery.order.lengths, None
    if not len(row):
        return None
    # Every row comes in every epoch: two of each lane nearly always hold one of them, and tell where to look further.
    if last:
        part = replace(delivery, begin=np.maximum(delivery.begin, delivery.end - 2 * each))
    else:
        part = replace(delivery, end=np.minimum(delivery.end, delivery.begin + 2 * each))
    for some in (part, delivery):
        # Lanes keep pace, so that the highest number is nearly always the last; what may come later is looked at again.
        while (seen := some.seen(group, row)).shape[1]:
            chosen = np.argmax(seen[0]) if last else np.argmin(seen[0])
            _, epoch, index = seen[:, chosen].tolist()
            passes = delivery.passes
            if not isinstance(plan.data, Mixture) and plan.epochs is not None:
                passes = epoch // plan.epochs
            (at,) = plan.steps.places(passes, delivery.source, epoch, group[[index]], row[[index]])
            assert at is not None
            found = at[0].step
            counts = _given(plan, delivery.passes, found + last)[delivery.source]
            some = replace(delivery, begin=counts) if last else replace(delivery, end=counts)
        if found is not None:
            break
    return found


def _since(plan: BatchPlan, passes: int, first: int, end: int) -> Iterator[Delivery]:
    """Yield what some steps took of each dataset, counted from a pass on."""
    if first == end:
        return
    epoch = 0 if isinstance(plan.data, Mixture) else passes * (plan.epochs or 0)
    for source, counts in enumerate(zip(_given(plan, passes, first), _given(plan, passes, end), strict=True)):
        yield Delivery(source, plan.stream(passes).orders[source], passes, epoch, *counts)


def _given(plan: BatchPlan, since: int, step: int) -> Int64:
    """Return how many rows of each dataset each lane gave since a pass began, before a step, int64[datasets, lanes]."""
    if step == plan.steps.begin(since):
        stream = plan.stream(since)
        return np.zeros((len(stream.orders), stream.layout.lanes), np.int64)
    batch = plan.batch(step - 1)
    stream = plan.stream(batch.passes)
    passed = [(batch.passes - since) * (plan.epochs or 0) * order.lengths for order in stream.orders]
    return stream.drawn(batch.start, batch.size, batch.rows) + passed
