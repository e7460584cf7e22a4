"""What was in a batch, and when a document is seen: an order that is a function answers both.

::

    loader = tl.DataLoader(ds, batch_size=256, seed=0)
    tl.explain(loader, 1000, row=17)                          # the documents of one row of step 1000
    tl.explain(loader, document=("code/a.jsonl", 0))          # when its first document is seen
    tl.explain(loader, document={"id": "a81f"})               # by a field that was kept beside the tokens

Of the row groups that are asked about, only the columns that say where ids come from are read, less than a hundredth
of a file; every page against its checksum, as everywhere. A document's own id is looked for in the whole column.
"""

from __future__ import annotations

import difflib
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Unpack, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.runtime.loader.dataset import Dataset, whole_numbers
from tokenlake.runtime.loader.dataset import open as open_dataset
from tokenlake.runtime.loader.loader import DataLoader
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.provenance import PIECES, PLACE, Provenance
from tokenlake.runtime.loader.steps import BatchStep
from tokenlake.runtime.reading.packed import attention
from tokenlake.runtime.reading.stored_columns import stored_schema
from tokenlake.runtime.store.catalog import Catalog, read_record
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import InputFileEntry


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


def explain(
    where: str | os.PathLike[str] | Dataset | Mixture | DataLoader,
    step: int | None = None,
    row: int | None = None,
    *,
    document: tuple[str, int] | Mapping[str, Any] | None = None,
    passes: int = 1,
    name: str | None = None,
    split: str | None = None,
    batch_size: int | Mapping[int, int] | None = None,
    **options: Unpack[LoaderKeywords],
) -> list[ExplainedRow]:
    """Return what is in a batch of a loader, or when a document is seen.

    ::

        tl.explain("artifacts/code@v3", 1000, batch_size=256, seed=0)
        tl.explain(loader, document=("code/a.jsonl", 1200))

    Args:
        where: the loader; or what it reads, as :func:`tokenlake.open` takes it or as it was opened, with the options
            that the loader has.
        step: which batch, counted from 0 over all passes; with `document`, look only before it.
        row: only this one of the global batch.
        document: the path of an input file with the document's position in it (a row number, or a byte offset in a file
            of lines); or one field that was kept beside the tokens (`additional_fields`), and its value.
        passes: over the data that are looked at for a document.
        name, split: as for :func:`tokenlake.open`.
        batch_size, options: as :class:`DataLoader` takes them.

    Returns:
        the rows of the batch in their order; or the rows with pieces of the document, as they are delivered.

    Raises:
        ConfigError: there is no such step, row, file, document or field; or an option is wrong or missing.
        NotFoundError: there is no such version.
        IntegrityError: a file is missing or damaged.
    """
    if isinstance(where, DataLoader):
        plan = where.plan
    elif batch_size is None:
        raise ConfigError("batch_size: got None, must be that of the loader; or give the loader itself")
    else:
        data = where if isinstance(where, Dataset | Mixture) else open_dataset(where, name, split=split)
        plan = BatchPlan(data, LoaderOptions(batch_size=batch_size, **options))
    if document is None:
        if step is None:
            raise ConfigError("name a batch (step) or a document (document)")
        return explain_step(plan, step, row)
    found = [
        steps_of_document(plan, each, until=step, passes=passes) for each in documents_of(plan, document)
    ]
    return sorted((each for rows in found for each in rows), key=lambda each: (each.step, each.row))


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
    for number in range(len(plan.datasets)):
        source, there = _PlannedDataset(plan, number), np.flatnonzero(found.source == number)
        group, inside, epoch = (column[there] for column in (found.group, found.row, found.epoch))
        for each, pieces in source.pieces(np.unique(group).tolist()):
            for index in np.flatnonzero(group == each).tolist():
                at, stored = int(place_of[rows[there[index]]]), int(inside[index])
                explained[at] = source.row((batch, at, int(epoch[index]), length), each, pieces, stored)
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
        raise ConfigError(f"no input file of {plan.named} is {path!r}{guess}")
    return found


def documents_of(plan: BatchPlan, asked: tuple[str, int] | Mapping[str, Any]) -> list[Document]:
    """Return the documents at a place of an input file, or of which a kept field has this value.

    Where the plan's own rows hold no such field, as packed ones do not, it is looked for in what they were made from.

    Raises:
        ConfigError: there is no such file, field or value.
        IntegrityError: a file is missing or damaged.
    """
    if not isinstance(asked, Mapping):
        path, position = asked
        return [Document(entry.file_id, position) for entry in files_of(plan, path)]
    if len(asked) != 1:
        raise ConfigError(f"document: got {dict(asked)!r}, must be one field and its value")
    [(field, value)] = asked.items()
    holding = _with_field(plan.datasets.values(), field)
    if not holding:
        raise ConfigError(
            f"{plan.named} has no column {field!r}, nor what it was made from: `additional_fields: [{field}]` of a "
            "dataset that is not packed keeps it. A document is found by its file and position, too"
        )
    found = [each for dataset in holding for each in _with_value(dataset, field, value)]
    if not found:
        raise ConfigError(
            f"no document of {', '.join(each.name for each in holding)} has the {field} {value!r}"
        )
    return list(dict.fromkeys(found))


def _with_field(datasets: Iterable[Dataset], field: str) -> list[Dataset]:
    """Return those that keep a field, or of those that do not, what they were made from."""
    found = list[Dataset]()
    for dataset in datasets:
        if field in stored_schema(dataset.manifest).names:
            found.append(dataset)
            continue
        catalog = Catalog(dataset.store)
        manifests = [catalog.manifest(each.dataset, each.version) for each in dataset.manifest.parents]
        found += _with_field(
            [Dataset(dataset.store, each, split) for each in manifests for split in each.splits], field
        )
    return found


def _with_value(dataset: Dataset, field: str, value: Any) -> Iterator[Document]:
    for group in range(len(dataset.rows.group_rows)):
        batch = dataset.rows.read(group, [field, *PLACE])
        column = cast("Any", batch.column(field))
        try:
            wanted = pa.scalar(value).cast(column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise ConfigError(
                f"document: got {value!r} for {field}, whose values in {dataset.name} are of the type {column.type}"
            ) from None
        there = np.flatnonzero(pc.equal(column, wanted).fill_null(False).to_numpy(zero_copy_only=False))
        files, positions = (whole_numbers(cast("Any", batch.column(each))) for each in PLACE)
        for row in there.tolist():
            yield Document(int(files[row]), int(positions[row]))


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
        raise ConfigError(f"no input file of {plan.named} has the id {document.file}")
    spans, first = list[tuple[int, int]](), 0  # numbers of passes, and the step to stop before
    while len(spans) < passes and (until is None or first < until):
        first = cast("int", until) if plan.steps.rows is None else plan.steps.begin(len(spans) + 1)
        spans.append((len(spans), first if until is None else min(first, until)))
    others: set[int] = set()
    stored, found = False, list[ExplainedRow]()
    for number in range(len(plan.datasets)):
        source = _PlannedDataset(plan, number)
        for group, pieces, segments in source.holding(document, others):
            stored = True
            for row in np.unique(pieces.row_of(segments)).tolist():
                for seen in _deliveries(plan, number, group, row, spans):
                    found.append(source.row(seen, group, pieces, row, document))
    if not stored:
        beside = sorted(others)
        at = bisect_left(beside, document.position)
        near = ", ".join(str(other) for other in beside[max(0, at - 1) : at + 1])
        there = f"documents near it begin at {near}" if near else "it holds none of this file"
        raise ConfigError(
            f"{plan.named} holds no document of {entry.source} {entry.path} at {document.position}: {there}; it may "
            "have been filtered, or be of another split"
        )
    return sorted(found, key=lambda row: (row.step, row.row))


_Seen = tuple[BatchStep, int, int, int]
"""A batch, the row of it, the epoch of the dataset that it is of, and how long the batch is."""


@final
class _PlannedDataset:
    """A dataset of a plan, by its number there."""

    def __init__(self, plan: BatchPlan, number: int) -> None:
        self.plan, self.number = plan, number
        self.name, self.dataset = list(plan.datasets.items())[number]
        self.files = {entry.file_id: entry for entry in self.dataset.manifest.inputs}

    def pieces(self, groups: Iterable[int]) -> Iterator[tuple[int, Provenance]]:
        """Yield row groups with their segments; IntegrityError where a file is missing or damaged."""
        index, stored = self.plan.index, self.dataset.rows
        for group in groups:
            if index is None:
                yield group, Provenance.of(stored.read(group, PIECES))
                continue
            first, last = index.first_rows[index.first_groups[self.number] + group :][:2].tolist()
            yield group, Provenance.of_documents(stored.read(group, PLACE), index.whole(slice(first, last)))

    def row(
        self, seen: _Seen, group: int, pieces: Provenance, row: int, document: Document | None = None
    ) -> ExplainedRow:
        """Describe a row of a row group; only the segments of a document, if one is given."""
        (batch, at, epoch, length), (shard, index) = seen, self.dataset.rows.shard_of(group)
        return ExplainedRow(
            step=batch.step,
            passes=batch.passes,
            row=at,
            epoch=epoch,
            name=self.name,
            dataset=self.dataset.name,
            stored_row=self.dataset.rows.row_of(group) + row,
            shard=shard.path,
            shard_row=shard.row_groups[index] + row,
            segments=tuple(self._segments(pieces, row, document, length)),
            length=length,
        )

    def holding(self, document: Document, others: set[int]) -> Iterator[tuple[int, Provenance, Int64]]:
        """Yield row groups with segments of a document, and which; `others` gets the file's other positions."""
        if document.file not in self.files:
            return
        for alone, groups in _groups_with(self.dataset, document.file, document.position):
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


def _groups_with(dataset: Dataset, file: int, position: int) -> Iterator[tuple[bool, list[int]]]:
    """Yield row groups that may hold pieces of a document, unit of work by unit of work, the likeliest first.

    The ledger says which units read the file, and a document's pieces never leave a unit. What mixtures and repacked
    versions read is other versions: any of their units may hold any document, and several may hold the same.

    Yields:
        whether no other unit holds the document if this one does, and its row groups.
    """
    units: dict[int, list[int]] = {}
    for group in range(len(dataset.rows.group_rows)):
        units.setdefault(dataset.rows.shard_of(group)[0].unit, []).append(group)
    likely, unlikely = list[tuple[bool, list[int]]](), list[tuple[bool, list[int]]]()
    layout = Layout(dataset.manifest.dataset, dataset.manifest.version)
    for unit, groups in units.items():
        inputs = ()
        with suppress(NotFoundError):  # of a version that was copied without its ledger
            inputs = read_record(dataset.store, layout, unit, dataset.manifest).inputs
        if not inputs:
            unlikely.append((False, groups))
        elif ranges := [each for each in inputs if each.file_id == file]:
            # Ranges are of bytes in files of lines, and else of row groups: a hint of where to begin.
            hit = any(each.start <= position < each.stop for each in ranges)
            (likely if hit else unlikely).append((True, groups))
    yield from likely
    yield from unlikely


def _deliveries(
    plan: BatchPlan, source: int, group: int, row: int, spans: Iterable[tuple[int, int]]
) -> Iterator[_Seen]:
    """Yield when a stored row is delivered in some passes, each before a step."""
    at = np.array([group]), np.array([row])
    for passes, end in spans:
        for epoch in plan.steps.epochs(passes, end, source, group, row):
            (place,) = plan.steps.places(passes, source, epoch, *at)
            if place is not None and place[0].step < end:
                batch, before = place
                dealt = np.flatnonzero(_dealt(plan, batch) == before)
                yield batch, int(dealt[0]), epoch, plan.lengths([batch])[0]


def _dealt(plan: BatchPlan, batch: BatchStep) -> Int64:
    """Return which of its rows each place of a batch has, int64[n]; what they cost is read where that decides."""
    if plan.ranks is None:
        return np.arange(batch.rows)
    (found,) = plan.rows([batch], np.arange)
    costs = np.zeros(batch.rows, np.int64)
    for source, stored in enumerate(plan.sources):
        for group in np.unique(found.group[found.source == source]).tolist():
            there = np.flatnonzero((found.source == source) & (found.group == group))
            lengths: Any = stored.read(group, PIECES[:1]).column(0)
            offsets = offsets_of(whole_numbers(lengths.value_lengths()))
            each = attention(whole_numbers(lengths.flatten()), offsets, plan.within(batch.step))
            costs[there] = each[found.row[there]]
    return plan.dealt(batch, costs)


def _files(plan: BatchPlan) -> dict[int, InputFileEntry]:
    return {entry.file_id: entry for each in plan.datasets.values() for entry in each.manifest.inputs}
