"""Contents of a batch, and the steps at which a document is delivered.

::

    loader = tl.DataLoader(ds, batch_size=256, seed=0)
    tl.explain(loader, 1000, row=17)                          # the documents of one row of step 1000
    tl.explain(loader, document=("code/a.jsonl", 0))          # the steps that deliver the first document of a file
    tl.explain(loader, document={"id": "a81f"})               # the same, by a field that is stored beside the tokens

The order of rows is a function of the step, and it has an inverse, so that both
questions are answered without a pass over the data:

- **Step to documents** (:func:`explain_step`): the plan locates the rows of the step;
  their provenance is read.
- **Document to steps** (:func:`steps_of_document`): the provenance of the row groups
  that may hold the document is read; the plan returns the steps that deliver its rows,
  epoch by epoch.

Only the columns of provenance are read, less than a hundredth of a file, and every page
is compared with its checksum. To find a document by a field, the whole column of the
field is read.
"""

from __future__ import annotations

import difflib
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack, cast, final

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
    """Ids of one document in a row.

    Attributes:
        source: Name of the source in the build configuration.
        path: Path of the input file.
        position: Row index of the document in the file, or byte offset in files of
            lines.
        start: First id in the document. If rows are documents or preferences: in the
            stored row, that of the longest answer with its prompt.
        stop: Id after the last one, in the same.
        begin: First place in the row of the batch.
        end: Place after the last one.
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
        step: Step of the batch.
        passes: Passes over the data that ended before.
        row: Index of the row in the global batch; that of the stored row, where
            `lengths` cut it into several.
        epoch: Epoch of the dataset.
        name: Name of the dataset in the loader: that in the mixture, else its split.
        dataset: Name of the dataset, such as ``code@v3/train``.
        stored_row: Row index in the split.
        shard: Path of the file, relative to the version.
        shard_row: Row index in the file.
        segments: Segments in the order of the row; from :func:`steps_of_document`,
            those of the document.
        length: Ids of the row, padding included.
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


@final
@dataclass(frozen=True, slots=True)
class Document:
    """A document, by its place in the inputs.

    Attributes:
        file: Id of the input file, as in the column ``documents``.
        position: Row index in the file, or byte offset in files of lines.
    """

    file: int
    position: int


class _Delivery(NamedTuple):
    """A row of a batch that delivers a stored row.

    Attributes:
        batch: The batch.
        row: Index of the row in the batch.
        epoch: Epoch of the dataset that the row belongs to.
        length: Length of the batch, in ids.
    """

    batch: BatchStep
    row: int
    epoch: int
    length: int


class _PassSpan(NamedTuple):
    """Steps of a pass to search.

    Attributes:
        passes: Number of the pass.
        end: Step before which to search.
    """

    passes: int
    end: int


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
    """Return the contents of a batch, or the batches that deliver a document.

    Args:
        where: Loader; or the data that it reads, opened or as :func:`tokenlake.open`
            takes it, together with the loader's options.
        step: Step of the batch, counted from 0 over all passes; with `document`, the
            step before which to search.
        row: Index of the only row to return, in the global batch; None: all rows.
        document: Path of an input file and the document's position in it (row index, or
            byte offset in a file of lines); or one field that is stored beside the
            tokens (`additional_fields`), and its value.
        passes: Number of passes over the data to search for a document.
        name: Name of the dataset, as for :func:`tokenlake.open`.
        split: Name of the split, as for :func:`tokenlake.open`.
        batch_size: Rows of a global batch, as for :class:`DataLoader`.
        options: All other options of :class:`DataLoader`.

    Returns:
        The rows of the batch, in their order; or the rows with segments of the
        document, in the order of delivery.

    Raises:
        ConfigError: The step, row, file, document or field does not exist; or an option
            is wrong or missing.
        NotFoundError: The version does not exist.
        IntegrityError: A file is missing or damaged.

    Example:
        >>> import tokenlake as tl
        >>> rows = tl.explain("artifacts/books@v3", 3, batch_size=8, seed=0)
        >>> len(rows), rows[0].segments[0].path
        (8, 'a.jsonl')
        >>> delivered = tl.explain("artifacts/books@v3", document=("a.jsonl", 0), batch_size=8, seed=0)
    """
    # A loader has its plan already. Otherwise the plan is that of a loader with the
    # same options; no row is read for it.
    if isinstance(where, DataLoader):
        plan = where.plan
    elif batch_size is None:
        raise ConfigError(
            "batch_size: got None, must be that of the loader; or give the loader itself"
        )
    else:
        data = (
            where
            if isinstance(where, Dataset | Mixture)
            else open_dataset(where, name, split=split)
        )
        plan = BatchPlan(data, LoaderOptions(batch_size=batch_size, **options))
    if document is None:
        if step is None:
            raise ConfigError("give a batch (step) or a document (document)")
        return explain_step(plan, step, row)
    # A value of a field may belong to several documents, for example to copies.
    rows: list[ExplainedRow] = []
    for matching_document in documents_of(plan, document):
        rows += steps_of_document(plan, matching_document, until=step, passes=passes)
    return sorted(rows, key=lambda explained: (explained.step, explained.row))


def explain_step(
    plan: BatchPlan, step: int, row: int | None = None
) -> list[ExplainedRow]:
    """Return the contents of a batch, row by row.

    Args:
        plan: Plan of a loader.
        step: Step of the batch, counted from 0 over all passes.
        row: Index of the only row to return, in the global batch; None: all rows.

    Raises:
        ConfigError: The step or row does not exist.
        IntegrityError: A file is missing or damaged.
    """
    if step < 0:
        raise ConfigError(f"step: got {step}, must be a whole number from 0 on")
    batch = plan.batch(step)
    if row is not None and not 0 <= row < batch.rows:
        raise ConfigError(
            f"row: got {row}, but step {step} has rows 0 to {batch.rows - 1}"
        )
    # Rows of the batch in the order of the stream, and the place of each in the batch
    # that is delivered.
    place_of_row = np.argsort(_row_at_place(plan, batch))
    stream_rows = np.arange(batch.rows)
    if row is not None:
        stream_rows = np.flatnonzero(place_of_row == row)
    (located,) = plan.rows([batch], lambda size: stream_rows)
    (length,) = plan.lengths([batch])
    # Read the provenance of each row group once.
    explained: dict[int, ExplainedRow] = {}
    for source in range(len(plan.datasets)):
        dataset = _PlannedDataset(plan, source)
        groups = np.unique(located.group[located.source == source]).tolist()
        for group, provenance in dataset.provenance(groups):
            is_in_group = (located.source == source) & (located.group == group)
            for index in np.flatnonzero(is_in_group).tolist():
                place = int(place_of_row[stream_rows[index]])
                delivery = _Delivery(batch, place, int(located.epoch[index]), length)
                explained[place] = dataset.explained(
                    delivery, group, provenance, int(located.row[index])
                )
    return [explained[place] for place in sorted(explained)]


def files_of(plan: BatchPlan, path: str) -> list[InputFileEntry]:
    """Return the input files with a path, at most one for each source.

    The sources are those of the plan's datasets.

    Raises:
        ConfigError: There is no such file.
    """
    # Paths are those of the manifest: the input files need not exist any more.
    files = _files(plan)
    matching = [entry for entry in files.values() if entry.path == path]
    if not matching:
        similar = difflib.get_close_matches(
            path, [entry.path for entry in files.values()], n=1, cutoff=0.5
        )
        hint = (
            f"; did you mean {similar[0]!r}?"
            if similar
            else f" ({len(files)} have other paths)"
        )
        raise ConfigError(f"no input file of {plan.named} is {path!r}{hint}")
    return matching


def _path_and_position(document: object) -> tuple[str, int]:
    """Return the path and the position that name a document; ConfigError if it has
    another form.
    """
    if isinstance(document, tuple) and len(cast("tuple[object, ...]", document)) == 2:
        path, position = cast("tuple[object, object]", document)
        if isinstance(path, str) and isinstance(position, int):
            return path, position
    raise ConfigError(
        f"document: got {document!r}, must be (path, position) such as ('notes/a.jsonl', 83120), or {{field: value}}"
    )


def documents_of(
    plan: BatchPlan, asked: tuple[str, int] | Mapping[str, Any]
) -> list[Document]:
    """Return the documents at a position of an input file, or with a field value.

    Fields are searched where they are stored. If the plan's own rows do not hold the
    field, as packed rows do not, it is searched in their parent versions.

    Args:
        plan: Plan of a loader.
        asked: (path, position), or {field: value}.

    Raises:
        ConfigError: The file, field or value does not exist.
        IntegrityError: A file is missing or damaged.
    """
    # By file and position: no file has to be read.
    if not isinstance(asked, Mapping):
        path, position = _path_and_position(asked)
        return [Document(entry.file_id, position) for entry in files_of(plan, path)]
    if len(asked) != 1:
        raise ConfigError(
            f"document: got {dict(asked)!r}, must be one kept field and its value; by file and position it is "
            "document=(path, position)"
        )
    # By a field: its column is read, of all rows of the versions that hold it.
    [(field, value)] = asked.items()
    datasets = _datasets_with_field(plan.datasets.values(), field)
    if not datasets:
        raise ConfigError(
            f"neither {plan.named} nor its parents have a column {field!r}: `additional_fields: [{field}]` of a "
            "dataset that is not packed stores it. A document is also found by its file and position"
        )
    # Sources of a mixture may share a parent version, which would return a document
    # twice.
    documents: dict[Document, None] = {}  # each once, in the order of the datasets
    for dataset in datasets:
        documents.update(dict.fromkeys(_documents_with_value(dataset, field, value)))
    if not documents:
        listed = ", ".join(dataset.name for dataset in datasets)
        raise ConfigError(f"no document of {listed} has the {field} {value!r}")
    return list(documents)


def steps_of_document(
    plan: BatchPlan, document: Document, *, until: int | None = None, passes: int = 1
) -> list[ExplainedRow]:
    """Return the rows with segments of a document, in the order of delivery.

    Args:
        plan: Plan of a loader.
        document: Document to search for.
        until: Step before which to search; None: no limit.
        passes: Number of passes over the data to search.

    Returns:
        Each row with its segments of the document; nothing if no row with one is
        delivered.

    Raises:
        ConfigError: No dataset of the plan holds the document, or a pass never ends and
            `until` is None.
        IntegrityError: A file is missing or damaged.
    """
    # An endless pass repeats the document forever.
    if until is None and plan.steps.rows is None:
        raise ConfigError(
            "the order is endless; give the step before which to search (until, --step)"
        )
    file_entry = _files(plan).get(document.file)
    if file_entry is None:
        raise ConfigError(f"no input file of {plan.named} has the id {document.file}")
    spans = _pass_spans(plan, until, passes)
    # Find the stored rows with segments of the document, then the deliveries of each.
    rows: list[ExplainedRow] = []
    is_stored = False
    other_positions: set[int] = set()
    for source in range(len(plan.datasets)):
        dataset = _PlannedDataset(plan, source)
        for group, provenance, segments in dataset.groups_with(
            document, other_positions
        ):
            is_stored = True
            for row in np.unique(provenance.row_of(segments)).tolist():
                deliveries = _deliveries(plan, source, group, row, spans)
                rows += [
                    dataset.explained(delivery, group, provenance, row, document)
                    for delivery in deliveries
                ]
    if not is_stored:
        raise ConfigError(
            f"{plan.named} holds no document of {file_entry.source} {file_entry.path} at {document.position}: "
            f"{_neighbours(other_positions, document.position)}; it may have been filtered, or belong to another "
            "split"
        )
    return sorted(rows, key=lambda explained: (explained.step, explained.row))


def _pass_spans(plan: BatchPlan, until: int | None, passes: int) -> list[_PassSpan]:
    """Return the steps to search: some passes, and at most the steps before `until`."""
    spans: list[_PassSpan] = []
    end = 0
    while len(spans) < passes and (until is None or end < until):
        passes_ended = len(spans)
        if plan.steps.rows is None:  # the pass never ends, and `until` is given
            end = cast("int", until)
            spans.append(_PassSpan(passes_ended, end))
            continue
        end = plan.steps.begin(passes_ended + 1)
        last = end if until is None else min(end, until)
        spans.append(_PassSpan(passes_ended, last))
    return spans


def _neighbours(positions: set[int], position: int) -> str:
    """Return a text with the positions of a file's documents before and after one."""
    ascending = sorted(positions)
    index = bisect_left(ascending, position)
    nearest = ", ".join(map(str, ascending[max(0, index - 1) : index + 1]))
    return (
        f"documents near it begin at {nearest}"
        if nearest
        else "it contains none of this file"
    )


def _datasets_with_field(datasets: Iterable[Dataset], field: str) -> list[Dataset]:
    """Return the datasets that store a field.

    A dataset that does not is replaced by its parents that do.
    """
    with_field: list[Dataset] = []
    for dataset in datasets:
        if field in stored_schema(dataset.manifest).names:
            with_field.append(dataset)
            continue
        catalog = Catalog(dataset.store)
        parents: list[Dataset] = []
        for parent in dataset.manifest.parents:
            manifest = catalog.manifest(parent.dataset, parent.version)
            parents += [
                Dataset(dataset.store, manifest, split) for split in manifest.splits
            ]
        with_field += _datasets_with_field(parents, field)
    return with_field


def _documents_with_value(
    dataset: Dataset, field: str, value: Any
) -> Iterator[Document]:
    """Yield the documents of a dataset with a value of a stored field."""
    for group in range(len(dataset.rows.group_rows)):
        batch = dataset.rows.read(group, [field, *PLACE])
        column = cast("Any", batch.column(field))
        try:
            wanted = pa.scalar(value).cast(column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise ConfigError(
                f"document: got {value!r} for {field}, whose values in {dataset.name} are of the type {column.type}"
            ) from None
        is_equal = (
            pc.equal(column, wanted).fill_null(False).to_numpy(zero_copy_only=False)
        )
        files, positions = (
            whole_numbers(cast("Any", batch.column(name))) for name in PLACE
        )
        for row in np.flatnonzero(is_equal).tolist():
            yield Document(int(files[row]), int(positions[row]))


@final
class _PlannedDataset:
    """A dataset of a plan.

    Args:
        plan: Plan of a loader.
        source: Index of the dataset in the plan.
    """

    def __init__(self, plan: BatchPlan, source: int) -> None:
        self._plan = plan
        self._source = source
        self._name, self._dataset = list(plan.datasets.items())[source]
        self._files = {entry.file_id: entry for entry in self._dataset.manifest.inputs}

    def provenance(self, groups: Iterable[int]) -> Iterator[tuple[int, Provenance]]:
        """Yield each of some row groups with the provenance of its segments.

        Raises:
            IntegrityError: A file is missing or damaged.
        """
        # Packed rows store the provenance of each segment. Other rows are one document
        # each: the length index has their lengths.
        index = self._plan.index
        stored = self._dataset.rows
        for group in groups:
            if index is None:
                yield group, Provenance.of(stored.read(group, PIECES))
                continue
            number = index.first_groups[self._source] + group
            first, end = index.first_rows[number : number + 2].tolist()
            yield (
                group,
                Provenance.of_documents(
                    stored.read(group, PLACE), index.whole(slice(first, end))
                ),
            )

    def explained(
        self,
        delivery: _Delivery,
        group: int,
        provenance: Provenance,
        row: int,
        document: Document | None = None,
    ) -> ExplainedRow:
        """Return the description of a row that is delivered.

        Args:
            delivery: Row of a batch.
            group: Row group that the row is stored in.
            provenance: Provenance of the row group.
            row: Row in the row group.
            document: Document whose segments are listed; None: all segments are.
        """
        # The row is named twice: by its number in the split, as for `Dataset`, and by
        # file and row, as for DuckDB.
        stored = self._dataset.rows
        shard, group_of_shard = stored.shard_of(group)
        return ExplainedRow(
            step=delivery.batch.step,
            passes=delivery.batch.passes,
            row=delivery.row,
            epoch=delivery.epoch,
            name=self._name,
            dataset=self._dataset.name,
            stored_row=stored.row_of(group) + row,
            shard=shard.path,
            shard_row=shard.row_groups[group_of_shard] + row,
            segments=tuple(self._segments(provenance, row, document, delivery.length)),
            length=delivery.length,
        )

    def groups_with(
        self, document: Document, other_positions: set[int]
    ) -> Iterator[tuple[int, Provenance, Int64]]:
        """Yield the row groups with segments of a document.

        Each comes as (row group, its provenance, indices of the segments).

        Args:
            document: Document to search for.
            other_positions: Set to which the positions of the file's documents in the
                row groups read are added.
        """
        # Another source of the mixture read this file.
        if document.file not in self._files:
            return
        for is_only_unit, groups in _candidate_groups(
            self._dataset, document.file, document.position
        ):
            # All segments of a document are in one unit, so that the search ends with
            # the unit that holds one.
            is_in_unit = False
            for group, provenance in self.provenance(groups):
                is_of_file = provenance.file == document.file
                segments = np.flatnonzero(
                    is_of_file & (provenance.position == document.position)
                )
                if len(segments):
                    is_in_unit = True
                    yield group, provenance, segments
                other_positions.update(
                    np.unique(provenance.position[is_of_file]).tolist()
                )
            if is_in_unit and is_only_unit:
                return

    def _segments(
        self,
        provenance: Provenance,
        row: int,
        document: Document | None,
        batch_length: int,
    ) -> Iterator[ExplainedSegment]:
        """Yield the segments of a row or of a document, with their places.

        Places are those in the row.
        """
        padding = self._plan.padding
        end = 0
        for segment in range(
            int(provenance.offsets[row]), int(provenance.offsets[row + 1])
        ):
            file = int(provenance.file[segment])
            position = int(provenance.position[segment])
            length = int(provenance.length[segment])
            start = int(provenance.start[segment])
            begin = end
            if padding is not None:
                # The row is one document: truncated to the length of the batch, or
                # padded to it.
                stored_length = length
                length = min(stored_length, batch_length)
                start = 0
                begin = 0
                if padding.truncate == "left":
                    start = stored_length - length
                if padding.side == "left":
                    begin = batch_length - length
            end = begin + length
            if document is not None:
                is_document = file == document.file and position == document.position
                if not is_document:
                    continue
            entry = self._files.get(file)
            if entry is None:
                raise IntegrityError(
                    f"{self._dataset.name}: a row is of file {file}, which is not among the inputs"
                )
            yield ExplainedSegment(
                entry.source, entry.path, position, start, start + length, begin, end
            )


def _candidate_groups(
    dataset: Dataset, file: int, position: int
) -> Iterator[tuple[bool, list[int]]]:
    """Yield row groups that may hold segments of a document.

    They come unit by unit, the likeliest unit first. The ledger lists the files that
    each unit read, and the segments of a document never leave a unit. Units of mixtures
    and repacked versions read other versions instead of files: each of them may hold
    any document, and several may hold the same.

    Yields:
        (whether no other unit holds the document if this one does, row groups of the
        unit).
    """
    # A shard records the unit that wrote it.
    groups_of_unit: dict[int, list[int]] = {}
    for group in range(len(dataset.rows.group_rows)):
        shard, _ = dataset.rows.shard_of(group)
        groups_of_unit.setdefault(shard.unit, []).append(group)
    # Units whose ranges cover the position come first; the others follow, because
    # ranges may only be hints.
    likely: list[tuple[bool, list[int]]] = []
    unlikely: list[tuple[bool, list[int]]] = []
    layout = Layout(dataset.manifest.dataset, dataset.manifest.version)
    for unit, groups in groups_of_unit.items():
        inputs = ()
        with suppress(NotFoundError):  # the version was copied without its ledger
            inputs = read_record(dataset.store, layout, unit, dataset.manifest).inputs
        if not inputs:
            unlikely.append((False, groups))
            continue
        ranges = [entry for entry in inputs if entry.file_id == file]
        if not ranges:
            continue
        # Ranges are in bytes for files of lines, and in row groups for others, where
        # they are only a hint.
        is_in_range = any(entry.start <= position < entry.stop for entry in ranges)
        if is_in_range:
            likely.append((True, groups))
        else:
            unlikely.append((True, groups))
    yield from likely
    yield from unlikely


def _deliveries(
    plan: BatchPlan, source: int, group: int, row: int, spans: Iterable[_PassSpan]
) -> Iterator[_Delivery]:
    """Yield the deliveries of a stored row.

    Args:
        plan: Plan of a loader.
        source: Index of the dataset.
        group: Row group of the row.
        row: Row in the row group.
        spans: Steps to search.
    """
    # In each epoch a stored row comes at one place, or not at all where the run ends
    # before it.
    for span in spans:
        for epoch in plan.steps.epochs(span.passes, span.end, source, group, row):
            (place,) = plan.steps.places(
                span.passes, source, epoch, np.array([group]), np.array([row])
            )
            if place is None:
                continue
            batch, stream_row = place
            if batch.step >= span.end:
                continue
            delivered_row = int(
                np.flatnonzero(_row_at_place(plan, batch) == stream_row)[0]
            )
            yield _Delivery(batch, delivered_row, epoch, plan.lengths([batch])[0])


def _row_at_place(plan: BatchPlan, batch: BatchStep) -> Int64:
    """Return the row of the stream at each place of a batch, int64[n].

    If ranks are balanced, the costs of the rows decide, and their segment lengths are
    read.
    """
    if plan.ranks is None:
        return np.arange(batch.rows)
    # The cost of a row is the attention over its segments, as when the batch is made.
    (located,) = plan.rows([batch], np.arange)
    costs = np.zeros(batch.rows, np.int64)
    for source, stored in enumerate(plan.sources):
        for group in np.unique(located.group[located.source == source]).tolist():
            rows = np.flatnonzero((located.source == source) & (located.group == group))
            lengths: Any = stored.read(group, PIECES[:1]).column(0)
            offsets = offsets_of(whole_numbers(lengths.value_lengths()))
            group_costs = attention(
                whole_numbers(lengths.flatten()), offsets, plan.within(batch.step)
            )
            costs[rows] = group_costs[located.row[rows]]
    return plan.dealt(batch, costs)


def _files(plan: BatchPlan) -> dict[int, InputFileEntry]:
    """Return the input files of all datasets of a plan by their ids."""
    files: dict[int, InputFileEntry] = {}
    for dataset in plan.datasets.values():
        for entry in dataset.manifest.inputs:
            files[entry.file_id] = entry
    return files
