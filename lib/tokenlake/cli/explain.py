"""``tokenlake explain``: the documents of a batch, and the steps of a document."""

from __future__ import annotations

import json as _json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

from cyclopts import Parameter
from rich.text import Text

from tokenlake.base.markup import printable
from tokenlake.base.numbers import count, plural
from tokenlake.cli.console import AsJson, StoreUrl, print_json, working
from tokenlake.errors import ConfigError
from tokenlake.etl.reports.terminal import stdout
from tokenlake.etl.sources.position_kinds import position_kinds_of
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.dataset import open as open_dataset
from tokenlake.runtime.loader.explain import (
    Document,
    ExplainedRow,
    documents_of,
    explain_step,
    steps_of_document,
)
from tokenlake.runtime.loader.options import LoaderOptions
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.state import restored
from tokenlake.runtime.store.schemes import default_store

_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")  # of sources


@final
@dataclass(frozen=True, slots=True)
class Order:
    """The options that a state says by itself.

    Attributes:
        seed: Seed of the order. Default: 0.
        batch_size: Rows of a batch; with a schedule, STEP:ROWS,...: 0:128,1000:256.
        epochs: Epochs of one pass, or `none` for a loader without an end. Default: 1.
        passes: How often the program iterates over the loader. Default: 1.
        lanes: Lanes of the loader.
        window: Row groups whose rows the loader permutes together, or `all`. Default:
            the loader's default order.
        interleave: Parts of each lane that the loader reads side by side. Default: the
            loader's default order.
        shuffle: Whether the loader shuffles; --no-shuffle reads rows as they are
            stored.
        drop_last: The loader drops the last incomplete batch.
        padding: Padding of the loader, as JSON: {"buckets": 8, "multiple": 64}. Of
            documents and preferences.
        split: Name of the split. Default: train.
    """

    seed: int | None = None
    batch_size: Annotated[str | None, Parameter(metavar="B")] = None
    epochs: int | Literal["none"] | None = None
    passes: int | None = None
    lanes: int | None = None
    window: int | Literal["all"] | None = None
    interleave: int | None = None
    shuffle: Annotated[bool, Parameter(negative="--no-shuffle")] = True
    drop_last: bool = False
    padding: Annotated[str | None, Parameter(metavar="JSON")] = None
    split: str | None = None

    def refuse(self) -> None:
        """Raise ConfigError if any option is given."""
        # The state defines the order: another option would describe another loader.
        flags: list[str] = []
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                flag = field.name.replace("_", "-")
                if field.name == "shuffle":
                    flag = "no-shuffle"
                flags.append(f"--{flag}")
        if flags:
            raise ConfigError(
                f"{', '.join(flags)}: the state defines this; leave it out with --state"
            )

    def plan(self, name: str | None, url: str) -> BatchPlan:
        """Return the batches of a loader with these options.

        Args:
            name: Dataset of the loader, or one version of it.
            url: Store that holds the dataset.

        Raises:
            ConfigError: The name or the batch size is missing, or an option has another
                form.
        """
        if name is None or self.batch_size is None:
            raise ConfigError(
                "name the dataset and the order: `tokenlake explain NAME --step 0 --batch-size 8`, or --state FILE"
            )
        # Without the option a pass is one epoch; `none` is a pass without an end.
        epochs: int | None = 1
        if self.epochs == "none":
            epochs = None
        elif self.epochs is not None:
            epochs = self.epochs
        options = LoaderOptions(
            batch_size=_batch_size(self.batch_size),
            seed=self.seed or 0,
            shuffle=self.shuffle,
            epochs=epochs,
            drop_last=self.drop_last,
            padding=_padding(self.padding),
            lanes=self.lanes,
            window=self.window,
            interleave=self.interleave,
        )
        return BatchPlan(open_dataset(url, name, split=self.split), options)


def _batch_size(batch_size: str) -> int | dict[int, int]:
    """Return a number of rows, ``128``, or a schedule, ``0:128,1000:256``.

    The schedule is {step: rows}.

    Raises:
        ConfigError: The text has another form.
    """
    try:
        if ":" not in batch_size:
            return int(batch_size)
        schedule: dict[int, int] = {}
        for entry in batch_size.split(","):
            step, rows = entry.split(":")
            schedule[int(step)] = int(rows)
        return schedule
    except ValueError:
        raise ConfigError(
            f"--batch-size: got {batch_size!r}, must be a number of rows, or step:rows,... as 0:128,1000:256"
        ) from None


def _padding(padding: str | None) -> Any:
    """Return the value of ``--padding``, which is JSON.

    Raises:
        ConfigError: The text is not JSON.
    """
    if padding is None:
        return None
    try:
        return _json.loads(padding)
    except ValueError:
        raise ConfigError(
            f'--padding: got {padding!r}, must be JSON, as {{"buckets": 8}}'
        ) from None


_NO_ORDER: Final = Order()


def explain(
    name: str | None = None,
    /,
    *,
    state: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    order: Annotated[Order, Parameter(name="*")] = _NO_ORDER,
    step: Annotated[int | None, Parameter(metavar="S")] = None,
    row: Annotated[int | None, Parameter(metavar="R")] = None,
    document: Annotated[tuple[str, ...], Parameter(metavar="PATH:POSITION")] = (),
    file_id: Annotated[tuple[str, ...], Parameter(metavar="ID:POSITION")] = (),
    id: Annotated[tuple[str, ...], Parameter(metavar="FIELD=VALUE")] = (),
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the documents in a batch of a loader, or the batches that contain a
    document.

    The order of a loader is a function of its options. Give either a saved state
    (--state), or the options that the loader had (--batch-size and so on). Only the
    provenance of these rows is read.

    Args:
        name: A dataset, or one version of it: NAME, NAME@v3 or NAME@TAG. None with
            the state of a mixture.
        state: JSON file of a loader's get_state(), which defines the whole order.
        step: Index of the batch, from 0. Default: the one after the state. With
            --document: search only the batches before it.
        row: Show only this row of the batch.
        document: Find this document: FILE:POSITION, with its row index, or its byte
            offset in a file of lines. Repeatable.
        file_id: Find this document by the id of its file in the column `documents`.
            Repeatable.
        id: Find the documents in which a field has this value, e.g. --id
            url=https://a.org. The field must be one of additional_fields of this
            version, or of the version that was packed. Repeatable.
    """
    # 1. The order: that of a saved state, or that of the options.
    url = store or default_store()
    next_step: int | None = None  # the step after the state
    end: int | None = None  # number of steps of all passes, where it is known
    if state is not None:
        order.refuse()
        plan, next_step = _plan_of_state(state, url, name)
    else:
        plan = order.plan(name, url)
        if plan.steps.rows is not None:
            end = plan.steps.begin(order.passes or 1)

    # 2. The batches of documents, if documents are named.
    if document or file_id or id:
        if row is not None:
            raise ConfigError(
                "--row selects a row of a batch; leave it out with --document, --file-id and --id"
            )
        # By default the search ends with the pass that the state is in.
        passes = order.passes or 1
        has_end = plan.steps.rows is not None
        if order.passes is None and next_step is not None and has_end:
            passes = plan.batch(next_step).passes + 1
        documents = _named_documents(plan, document, file_id, id)
        return _print_documents(plan, documents, step, passes, json)

    # 3. Otherwise the documents of a batch.
    chosen_step = step
    if chosen_step is None:
        chosen_step = next_step
    if chosen_step is None:
        raise ConfigError("name a batch (--step) or a document (--document, --id)")
    if end is not None and chosen_step >= end:
        raise ConfigError(
            f"step {chosen_step} is past the end: there are {plural(end, 'step')} (0 to {end - 1}); "
            "--epochs sets how many epochs a pass has, --passes how many passes there are"
        )
    return _print_batch(plan, chosen_step, row, json)


def _plan_of_state(path: Path, url: str, name: str | None) -> tuple[BatchPlan, int]:
    """Return the batches of the loader that saved a state, and the step after it.

    Args:
        path: JSON file of the state.
        url: Store that holds the datasets of the loader.
        name: Dataset that the state must be of; None for any.

    Raises:
        ConfigError: The file cannot be read, or the state is of another dataset.
    """
    try:
        state = _json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--state {path}: cannot be read: {error}") from error
    is_mixture = not isinstance(state, dict) or state.get("mixture") is not None

    # The name on the command line chooses the version; the state then checks that it is
    # the same one. A mixture has several names.
    def open_version(version: str, split: str) -> Dataset:
        chosen_version = version
        if name and not is_mixture:
            chosen_version = name
        return open_dataset(url, chosen_version, split=split)

    plan, position = restored(state, open_version)
    # All names by which the user may mean the loader.
    known_names = set(plan.datasets)
    for dataset in plan.datasets.values():
        manifest = dataset.manifest
        known_names.add(manifest.dataset)
        known_names.add(f"{manifest.dataset}@{manifest.version}")
        known_names.add(f"{manifest.dataset}@v{manifest.version}")
    if name is not None and name not in known_names:
        raise ConfigError(
            f"the state belongs to a mixture of {', '.join(plan.datasets)}, not of {name!r}; leave out the name"
        )
    if name is not None and is_mixture:
        raise ConfigError(
            f"the state belongs to a mixture of {', '.join(plan.datasets)}, whose batches have rows of all of them; "
            "leave out the name"
        )
    return plan, position.step


def _named_documents(
    plan: BatchPlan,
    places: Iterable[str],
    id_places: Iterable[str],
    values: Iterable[str],
) -> list[Document]:
    """Return the documents that the options name.

    Args:
        plan: Batches of the loader.
        places: Documents by file and position: ``a.jsonl:1200``.
        id_places: Documents by id of the file and position.
        values: Documents by a field and its value: ``url=https://a.org``.

    Raises:
        ConfigError: An option has another form.
        NotFoundError: A document does not exist.
    """
    documents: list[Document] = []
    for option_value in places:
        file, position = _file_and_position("--document", option_value)
        documents += documents_of(plan, (file, position))
    for option_value in id_places:
        file, position = _file_and_position("--file-id", option_value)
        # An id of a file is a signed number of 64 bits.
        if not re.fullmatch("-?[0-9]+", file):
            raise ConfigError(
                f"--file-id: got {option_value!r}, must be ID:POSITION, both whole numbers"
            )
        documents.append(Document(int(file), position))
    for option_value in values:
        field, equals, value = option_value.partition("=")
        if not equals or not field:
            raise ConfigError(
                f"--id: got {option_value!r}, must be a field and its value, as in id=a81f"
            )
        documents += documents_of(plan, {field: value})
    return documents


def _file_and_position(option: str, text: str) -> tuple[str, int]:
    """Return the two parts of ``FILE:POSITION``.

    Raises:
        ConfigError: The text does not end with a position.
    """
    # A path may have colons: the position is after the last one.
    file, colon, position = text.rpartition(":")
    if not colon or not position.isdecimal():
        raise ConfigError(
            f"{option}: got {text!r}, must end with the document's row index or byte offset, as in a.jsonl:1200"
        )
    return file, int(position)


def _print_batch(plan: BatchPlan, step: int, row: int | None, json: bool) -> int:
    """Print the documents of a batch, or of one of its rows."""
    with working(f"looking for the documents of step {count(step)}"):
        rows = explain_step(plan, step, row)
        batch = plan.batch(step)
    if json:
        print_json(
            {
                "step": step,
                "passes": batch.passes,
                "start": batch.start,
                "size": batch.size,
                "rows": [asdict(explained) for explained in rows],
            }
        )
        return 0
    # Positions of the rows in the stream.
    # Positions of the rows in the stream, which begins anew with each pass.
    places = f"{count(batch.start)} to {count(batch.start + batch.rows - 1)}"
    if batch.passes:
        places += f" of pass {batch.passes}"
    # All rows are of one step, which the heading names.
    _print_rows(
        f"step {count(step)}",
        f"{plural(batch.rows, 'row')}, {places}",
        plan,
        rows,
        with_step=False,
    )
    return 0


def _print_documents(
    plan: BatchPlan,
    documents: Sequence[Document],
    until: int | None,
    passes: int,
    json: bool,
) -> int:
    """Print the rows in which documents are delivered.

    Args:
        plan: Batches of the loader.
        documents: Documents to look for.
        until: Step before which the search ends; None for the end of the last pass.
        passes: Number of passes to search.
        json: True to print JSON.
    """
    with working("looking for the steps of the documents"):
        rows_by_document: list[tuple[Document, list[ExplainedRow]]] = []
        for document in documents:
            rows = steps_of_document(plan, document, until=until, passes=passes)
            rows_by_document.append((document, list(rows)))
    if json:
        records: list[dict[str, Any]] = []
        for document, rows in rows_by_document:
            records.append(
                {
                    "file_id": document.file,
                    "position": document.position,
                    "rows": [asdict(row) for row in rows],
                }
            )
        print_json(records)
        return 0
    # For people documents are named by their paths, which the manifests have.
    paths: dict[int, str] = {}
    for entry in _inputs(plan):
        paths.setdefault(entry.file_id, entry.path)
    limit = ""
    if until is not None:
        limit = f" before step {count(until)}"
    for document, rows in rows_by_document:
        summary = f"never seen{limit}"
        if rows:
            summary = f"seen in {plural(len(rows), 'row')}{limit}"
        heading = f"{paths[document.file]}:{document.position}"
        _print_rows(heading, summary, plan, rows, with_step=True)
    return 0


def _print_rows(
    heading: str,
    summary: str,
    plan: BatchPlan,
    rows: Iterable[ExplainedRow],
    *,
    with_step: bool,
) -> None:
    """Print rows with their provenance, each source in a colour of its own.

    Args:
        heading: First words of the first line, in bold.
        summary: Rest of the first line.
        plan: Batches of the loader.
        rows: Rows to print.
        with_step: True to print the step of each row.
    """
    console = stdout()
    console.print(Text.assemble((printable(heading), "bold"), (f"  {summary}", "dim")))
    # The meaning of a position depends on the format of its file.
    kinds: dict[tuple[str, str], str] = {}  # (source, path) -> meaning of positions
    for dataset in plan.datasets.values():
        kind_by_file = position_kinds_of(dataset.manifest)
        for entry in dataset.manifest.inputs:
            kinds[entry.source, entry.path] = kind_by_file[entry.file_id]
    # Sources have colours in the order of the inputs, so that a document has the same
    # colour in every batch.
    colours: dict[str, str] = {}
    for entry in _inputs(plan):
        if entry.source not in colours:
            colours[entry.source] = _COLOURS[len(colours) % len(_COLOURS)]
    # A line for each row: its place in the order, and its place in the store.
    is_mixture = len(plan.datasets) > 1
    for row in rows:
        place = f"row {count(row.row)}"
        if with_step:
            place = f"step {count(row.step)} {place}"
        # Of a mixture, the source that the row is drawn from.
        source_name = ""
        if is_mixture:
            source_name = f"{row.name} = "
        dataset_row = f"{row.dataset} row {count(row.stored_row)}"
        shard_row = f"{row.shard} row {row.shard_row}"
        stored = f"epoch {row.epoch}, {source_name}{dataset_row}, {shard_row}"
        console.print(Text.assemble((place, "bold"), (f"  {printable(stored)}", "dim")))
        # A line for each segment: its ids in the row, its document, and its tokens in
        # the document.
        for segment in row.segments:
            document = printable(f"{segment.source}  {segment.path}:{segment.position}")
            position_kind = kinds.get((segment.source, segment.path), "")
            position_note = ""
            if position_kind:
                position_note = f" ({position_kind})"
            ids = f"   ids {segment.begin}-{segment.end - 1}  "
            tokens = f"  tokens {segment.start}-{segment.stop - 1} of the document"
            line = Text.assemble(
                (ids, "dim"),
                (document, colours[segment.source]),
                (position_note + tokens, "dim"),
            )
            console.print(line)


def _inputs(plan: BatchPlan) -> list[Any]:
    """Return the input files of all datasets of a loader."""
    entries: list[Any] = []
    for dataset in plan.datasets.values():
        entries += dataset.manifest.inputs
    return entries
