"""What was in a batch, and when a document is seen: an order that is a function answers both.

::

    loader = tl.DataLoader(ds, batch_size=256, seed=0)
    explain_step(loader.plan, 1000, row=17)           # the documents of one row of step 1000

    (file,) = files_of(loader.plan, "code/a.jsonl")
    steps_of_document(loader.plan, Document(file.file_id, 0))   # when its first document is seen

Of the row groups that are asked about, only the columns that say where ids come from are read, less than a hundredth
of a file; every page against its checksum, as everywhere.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.steps import BatchStep
from tokenlake.ragged import Int64, offsets_of
from tokenlake.reading.packed import attention
from tokenlake.store.catalog import read_record
from tokenlake.store.entries import InputFileEntry
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import UnitRecord

_COLUMNS: Final = ["segment_lengths", "documents"]
_PLACE: Final = ["file", "position"]  # of a row that is one document


@final
@dataclass(frozen=True, eq=False, slots=True)
class Provenance:
    """The segments of the rows of a row group, one row after the other.

    Attributes:
        offsets: which are each row's, int64[rows + 1].
        length: ids of each, int64[s].
        file, position: the document, int64[s] both.
        start: the first id within the document, int64[s].
    """

    offsets: Int64
    length: Int64
    file: Int64
    position: Int64
    start: Int64

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Provenance:
        """Read a row group; IntegrityError where its columns contradict each other."""
        lengths, documents = (cast("Any", batch.column(name)) for name in _COLUMNS)
        counts = documents.value_lengths()
        if not counts.equals(lengths.value_lengths()):
            raise IntegrityError(
                f"{' and '.join(_COLUMNS)} of a row group are not of the same segments. "
                "Run `tokenlake verify --deep` to see all that is damaged"
            )
        fields = [_numbers(documents.flatten().field(name)) for name in ("file", "position", "start")]
        return cls(offsets_of(_numbers(counts)), _numbers(lengths.flatten()), *fields)

    @classmethod
    def of_documents(cls, batch: pa.RecordBatch, lengths: Int64) -> Provenance:
        """Read a row group whose rows are documents, or preferences, of so many ids each, int64[rows]."""
        file, position = (_numbers(cast("Any", batch.column(name))) for name in _PLACE)
        return cls(np.arange(len(lengths) + 1), lengths, file, position, np.zeros(len(lengths), np.int64))

    def row_of(self, index: Int64) -> Int64:
        """Return the row that each segment is of, int64[n]."""
        return np.searchsorted(self.offsets, index, side="right") - 1


def groups_with(dataset: Dataset, file: int, position: int) -> Iterator[tuple[bool, list[int]]]:
    """Yield row groups that may hold pieces of a document, unit of work by unit of work, the likeliest first.

    The ledger says which units read the file, and a document's pieces never leave a unit. What mixtures and repacked
    versions read is other versions: any of their units may hold any document, and several may hold the same.

    Yields:
        whether no other unit holds the document if this one does, and its row groups.
    """
    units: dict[int, list[int]] = {}
    for group in range(len(dataset.rows.group_rows)):
        units.setdefault(dataset.rows.shard_of(group)[0].unit, []).append(group)
    likely: list[tuple[bool, list[int]]] = []
    unlikely: list[tuple[bool, list[int]]] = []
    for unit, groups in units.items():
        record = _record(dataset, unit)
        if record is None or not record.inputs:
            unlikely.append((False, groups))
            continue
        ranges = [each for each in record.inputs if each.file_id == file]
        if ranges:
            # Ranges are of bytes in files of lines, and else of row groups: a hint of where to begin.
            hit = any(each.start <= position < each.stop for each in ranges)
            (likely if hit else unlikely).append((True, groups))
    yield from likely
    yield from unlikely


def _record(dataset: Dataset, unit: int) -> UnitRecord | None:
    layout = Layout(dataset.manifest.dataset, dataset.manifest.version)
    try:
        return read_record(dataset.store, layout, unit, dataset.manifest)
    except NotFoundError:  # of a version that was copied without its ledger
        return None


def _numbers(array: Any) -> Int64:
    return array.to_numpy(zero_copy_only=False).astype(np.int64)


@final
@dataclass(frozen=True, slots=True)
class ExplainedSegment:
    """A run of ids of one document.

    Attributes:
        source, path: the input file.
        position: of the document in it: a row number, or a byte offset in files of lines.
        start, stop: the ids' range in the document, half open; where rows are documents, or preferences, in the stored
            row, of the longest answer with its prompt.
        begin, end: and in the row.
    """

    source: str
    path: str
    position: int
    start: int
    stop: int
    begin: int
    end: int


@final
@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """One row of a batch.

    Attributes:
        step: of the batch.
        passes: passes over the data that ended before.
        row: in the global batch; of stored rows, where `lengths` cut them into several.
        epoch: of the dataset that it is of.
        name: of that dataset in the loader: a mixture's name for it, else its split.
        dataset: ``code@v3/train``.
        stored_row: row of the split.
        shard: file, relative to the version.
        shard_row: row of the file.
        segments: in the order of the row; of :func:`steps_of_document`, those of the document.
        length: ids of the row, padding included.
    """

    step: int
    passes: int
    row: int
    epoch: int
    name: str
    dataset: str
    stored_row: int
    shard: str
    shard_row: int
    segments: tuple[ExplainedSegment, ...]
    length: int


def explain_step(plan: BatchPlan, step: int, row: int | None = None) -> list[ExplainedRow]:
    """Return what the rows of a step's batch are, in their order.

    Args:
        plan: of a loader.
        step: counted from 0 over all passes.
        row: only this one of the global batch.

    Raises:
        ConfigError: there is no such step or row.
        IntegrityError: a file is missing or damaged.
    """
    if step < 0:
        raise ConfigError(f"step: got {step}, must be a whole number from 0 on")
    batch = plan.batch(step)
    if row is not None and not 0 <= row < batch.rows:
        raise ConfigError(f"row: got {row}, but step {step} has rows 0 to {batch.rows - 1}")
    place_of = np.argsort(_dealt(plan, batch))
    rows = np.arange(batch.rows) if row is None else np.flatnonzero(place_of == row)
    (found,) = plan.rows([batch], lambda size: rows)
    (length,) = plan.lengths([batch])
    explained: dict[int, ExplainedRow] = {}
    for number, source in enumerate(_sources(plan)):
        there = np.flatnonzero(found.source == number)
        group, inside, epoch = (column[there] for column in (found.group, found.row, found.epoch))
        for each, pieces in source.pieces(np.unique(group).tolist()):
            for index in np.flatnonzero(group == each).tolist():
                at, stored = int(place_of[rows[there[index]]]), int(inside[index])
                explained[at] = source.row(Seen(batch, at, int(epoch[index]), length), each, pieces, stored)
    return [explained[at] for at in sorted(explained)]


@final
@dataclass(frozen=True, slots=True)
class Document:
    """A document by its place in the input.

    Attributes:
        file: the input file's id, as the column ``documents`` holds it.
        position: in the file: a row number, or a byte offset in files of lines.
    """

    file: int
    position: int


def files_of(plan: BatchPlan, path: str) -> list[InputFileEntry]:
    """Return the input files of this path, of all sources of the plan's datasets; ConfigError where there is none."""
    files = _files(plan)
    found = [entry for entry in files.values() if entry.path == path]
    if not found:
        near = difflib.get_close_matches(path, [entry.path for entry in files.values()], n=1, cutoff=0.5)
        guess = f"; did you mean {near[0]!r}?" if near else f" ({len(files)} have other paths)"
        raise ConfigError(f"no input file of {_named(plan)} is {path!r}{guess}")
    return found


def steps_of_document(
    plan: BatchPlan, document: Document, *, until: int | None = None, passes: int = 1
) -> list[ExplainedRow]:
    """Return the rows that hold pieces of a document, in the order in which they are delivered.

    Args:
        plan: of a loader.
        document: which one.
        until: look at the steps before this one only.
        passes: over the data that are looked at.

    Returns:
        of each row the segments that are of the document; nothing where no row of it is delivered.

    Raises:
        ConfigError: no dataset of the plan holds such a document, or a pass never ends and `until` is None.
        IntegrityError: a file is missing or damaged.
    """
    if until is None and plan.steps.rows is None:
        raise ConfigError("the order has no end; say before which step to look (until, --step)")
    entry = _files(plan).get(document.file)
    if entry is None:
        raise ConfigError(f"no input file of {_named(plan)} has the id {document.file}")
    spans = list(_spans(plan, until, passes))
    others: set[int] = set()
    stored, found = False, list[ExplainedRow]()
    for number, source in enumerate(_sources(plan)):
        for group, pieces, segments in source.holding(document, others):
            stored = True
            for row in np.unique(pieces.row_of(segments)).tolist():
                for seen in _deliveries(plan, number, group, row, spans):
                    found.append(source.row(seen, group, pieces, row, document))
    if not stored:
        raise ConfigError(_absent(plan, entry, document.position, sorted(others)))
    return sorted(found, key=lambda row: (row.step, row.row))


@final
@dataclass(frozen=True, slots=True)
class Seen:
    """A row of a batch, the epoch of the dataset that it is of, and how long the batch is."""

    batch: BatchStep
    row: int
    epoch: int
    length: int


@final
@dataclass(frozen=True, slots=True)
class _PlannedDataset:
    """A dataset of a plan, by its name and its number there, and its input files by id."""

    name: str
    number: int
    dataset: Dataset
    files: Mapping[int, InputFileEntry]
    plan: BatchPlan

    def pieces(self, groups: Iterable[int]) -> Iterator[tuple[int, Provenance]]:
        """Yield row groups with their segments; IntegrityError where a file is missing or damaged."""
        index, stored = self.plan.index, self.dataset.rows
        for group in groups:
            if index is None:
                yield group, Provenance.of(stored.read(group, _COLUMNS))
                continue
            first, last = index.first_rows[index.first_groups[self.number] + group :][:2].tolist()
            yield group, Provenance.of_documents(stored.read(group, _PLACE), index.whole(slice(first, last)))

    def row(
        self, seen: Seen, group: int, pieces: Provenance, row: int, document: Document | None = None
    ) -> ExplainedRow:
        """Describe a row of a row group; only the segments of a document, if one is given."""
        shard, index = self.dataset.rows.shard_of(group)
        return ExplainedRow(
            step=seen.batch.step,
            passes=seen.batch.passes,
            row=seen.row,
            epoch=seen.epoch,
            name=self.name,
            dataset=self.dataset.name,
            stored_row=self.dataset.rows.row_of(group) + row,
            shard=shard.path,
            shard_row=shard.row_groups[index] + row,
            segments=tuple(self._segments(pieces, row, document, seen.length)),
            length=seen.length,
        )

    def holding(self, document: Document, others: set[int]) -> Iterator[tuple[int, Provenance, Int64]]:
        """Yield row groups with segments of a document, and which; `others` gets the file's other positions."""
        if document.file not in self.files:
            return
        for alone, groups in groups_with(self.dataset, document.file, document.position):
            here = False
            for group, pieces in self.pieces(groups):
                of_file = pieces.file == document.file
                segments = np.flatnonzero(of_file & (pieces.position == document.position))
                if len(segments):
                    here = True
                    yield group, pieces, segments
                others.update(np.unique(pieces.position[of_file]).tolist())
            if here and alone:
                return

    def _segments(
        self, pieces: Provenance, row: int, document: Document | None, width: int
    ) -> Iterator[ExplainedSegment]:
        end = 0
        for each in range(int(pieces.offsets[row]), int(pieces.offsets[row + 1])):
            file, position = int(pieces.file[each]), int(pieces.position[each])
            length, start = int(pieces.length[each]), int(pieces.start[each])
            begin, end = end, end + length
            if (padding := self.plan.padding) is not None:
                length, cut = min(length, width), max(0, length - width)
                start = cut if padding.truncate == "left" else 0
                begin = width - length if padding.side == "left" else 0
                end = begin + length
            if document is not None and (file, position) != (document.file, document.position):
                continue
            if (entry := self.files.get(file)) is None:
                raise IntegrityError(f"{self.dataset.name}: a row is of file {file}, which no input is")
            yield ExplainedSegment(entry.source, entry.path, position, start, start + length, begin, end)


def _sources(plan: BatchPlan) -> list[_PlannedDataset]:
    return [
        _PlannedDataset(
            name, number, dataset, {entry.file_id: entry for entry in dataset.manifest.inputs}, plan
        )
        for number, (name, dataset) in enumerate(plan.datasets.items())
    ]


def _spans(plan: BatchPlan, until: int | None, passes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number of a pass, its first step, the step to stop before) of what is looked at."""
    number, first = 0, 0
    while number < passes and (until is None or first < until):
        after = until if plan.steps.rows is None else plan.steps.begin(number + 1)
        assert after is not None
        yield number, first, after if until is None else min(after, until)
        number, first = number + 1, after


def _deliveries(
    plan: BatchPlan, source: int, group: int, row: int, spans: Iterable[tuple[int, int, int]]
) -> Iterator[Seen]:
    """Yield when a stored row is delivered."""
    at = np.array([group]), np.array([row])
    for passes, _, end in spans:
        for epoch in plan.epochs_of(passes, end, source, group, row):
            (place,) = plan.places(passes, source, epoch, *at)
            if place is not None and place[0].step < end:
                batch, before = place
                dealt = np.flatnonzero(_dealt(plan, batch) == before)
                yield Seen(batch, int(dealt[0]), epoch, plan.lengths([batch])[0])


def _dealt(plan: BatchPlan, batch: BatchStep) -> Int64:
    """Return which of its rows each place of a batch has, int64[n]; what they cost is read where that decides."""
    if plan.ranks is None:
        return np.arange(batch.rows)
    (found,) = plan.rows([batch], np.arange)
    costs = np.zeros(batch.rows, np.int64)
    for source, stored in enumerate(plan.sources):
        for group in np.unique(found.group[found.source == source]).tolist():
            there = np.flatnonzero((found.source == source) & (found.group == group))
            lengths: Any = stored.read(group, _COLUMNS[:1]).column(0)
            offsets = offsets_of(_numbers(lengths.value_lengths()))
            each = attention(_numbers(lengths.flatten()), offsets, plan.within(batch.step))
            costs[there] = each[found.row[there]]
    return plan.dealt(batch, costs)


def _files(plan: BatchPlan) -> dict[int, InputFileEntry]:
    return {entry.file_id: entry for each in plan.datasets.values() for entry in each.manifest.inputs}


def _named(plan: BatchPlan) -> str:
    return ", ".join(dataset.name for dataset in plan.datasets.values())


def _absent(plan: BatchPlan, entry: InputFileEntry, position: int, others: list[int]) -> str:
    at = bisect_left(others, position)
    near = ", ".join(str(other) for other in others[max(0, at - 1) : at + 1])
    there = f"documents near it begin at {near}" if near else "it holds none of this file"
    return (
        f"{_named(plan)} holds no document of {entry.source} {entry.path} at {position}: {there}; "
        "it may have been filtered, or be of another split"
    )
