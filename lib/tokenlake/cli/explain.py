"""``tokenlake explain``: the contents of a batch, and the steps at which a document is seen."""

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
from tokenlake.cli.console import AsJson, StoreUrl, print_json
from tokenlake.errors import ConfigError
from tokenlake.etl.reports.terminal import stdout
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

_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")


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
        window: Shuffle window of the loader.
        shuffle: Whether the loader shuffles; --no-shuffle reads rows as they are stored.
        drop_last: The loader drops the last incomplete batch.
        padding: Padding of the loader, as JSON: {"buckets": 8, "multiple": 64}. Of documents and preferences.
        split: Which split. Default: train.
    """

    seed: int | None = None
    batch_size: Annotated[str | None, Parameter(metavar="B")] = None
    epochs: int | Literal["none"] | None = None
    passes: int | None = None
    lanes: int | None = None
    window: int | None = None
    shuffle: Annotated[bool, Parameter(negative="--no-shuffle")] = True
    drop_last: bool = False
    padding: Annotated[str | None, Parameter(metavar="JSON")] = None
    split: str | None = None

    def refuse(self) -> None:
        """ConfigError where any of them is given."""
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        if given:
            flags = ", ".join(f"--{'no-' * (name == 'shuffle')}{name.replace('_', '-')}" for name in given)
            raise ConfigError(f"{flags}: the state defines this; leave it out with --state")

    def plan(self, name: str | None, where: str) -> BatchPlan:
        if name is None or self.batch_size is None:
            raise ConfigError("name the dataset and the order: NAME and --batch-size, or --state FILE")
        given, padding = self.batch_size, None
        try:
            sizes = dict(part.split(":") for part in given.split(",")) if ":" in given else {}
            batch_size = {int(step): int(size) for step, size in sizes.items()} or int(given)
        except ValueError:
            raise ConfigError(
                f"--batch-size: got {given!r}, must be a number of rows, or step:rows,... as 0:128,1000:256"
            ) from None
        try:
            padding = None if self.padding is None else _json.loads(self.padding)
        except ValueError:
            raise ConfigError(f'--padding: got {self.padding!r}, must be JSON, as {{"buckets": 8}}') from None
        asked = LoaderOptions(
            batch_size=batch_size,
            seed=self.seed or 0,
            shuffle=self.shuffle,
            epochs=None if self.epochs == "none" else 1 if self.epochs is None else self.epochs,
            drop_last=self.drop_last,
            padding=padding,
            lanes=self.lanes,
            window=1 if self.window is None else self.window,
        )
        return BatchPlan(open_dataset(where, name, split=self.split), asked)


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
    """List the documents in a batch of a loader, or the batches that contain a document.

    The order of a loader is a function of its options. Give either a saved state (--state), or the options that the
    loader had (--batch-size and so on). Of the rows in question, only their provenance is read.

    Args:
        name: A dataset, or one version of it: NAME or NAME@v3.
        state: JSON file of a loader's get_state(), which defines the whole order.
        step: Which batch, counted from 0. Default: the one after the state. With --document: look only before it.
        row: Show only this row of the batch.
        document: Find this document: a file and its row number, or its byte offset in a file of lines. Repeatable.
        file_id: Find this document by the id of its file in the column `documents`. Repeatable.
        id: Find the documents of which a field has this value, e.g. --id url=https://a.org; one that the build kept
            (additional_fields), or that of the version that was packed. Repeatable.
    """
    where, next_step, end = store or default_store(), None, None
    if state is not None:
        order.refuse()
        plan, next_step = _of_state(state, where, name)
    else:
        plan = order.plan(name, where)
        end = plan.steps.begin(order.passes or 1) if plan.steps.rows is not None else None
    if document or file_id or id:
        if row is not None:
            raise ConfigError(
                "--row selects a row of a batch; leave it out with --document, --file-id and --id"
            )
        passes = order.passes or 1
        if order.passes is None and next_step is not None and plan.steps.rows is not None:
            passes = plan.batch(next_step).passes + 1  # up to the end of the one that the state is in
        return _documents(plan, _asked(plan, document, file_id, id), step, passes, json)
    wanted = next_step if step is None else step
    if wanted is None:
        raise ConfigError("name a batch (--step) or a document (--document, --id)")
    if end is not None and wanted >= end:
        raise ConfigError(
            f"step {wanted} is past the end: there are {plural(end, 'step')} (0 to {end - 1}); "
            "--epochs sets how many epochs a pass has, --passes how many passes there are"
        )
    return _batch(plan, wanted, row, json)


def _of_state(path: Path, where: str, name: str | None) -> tuple[BatchPlan, int]:
    """The plan of a state, and the step after it; `name` must be what it is of."""
    try:
        data = _json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--state {path}: cannot be read: {error}") from error
    single = isinstance(data, dict) and data.get("mixture") is None

    def opened(version: str, split: str) -> Dataset:
        # A name that is given says which version is meant, and the state whether it is the same one.
        return open_dataset(where, name if single and name else version, split=split)

    plan, place = restored(data, opened)
    names = set(plan.datasets)
    for manifest in (dataset.manifest for dataset in plan.datasets.values()):
        names |= {manifest.dataset, *(f"{manifest.dataset}@{v}{manifest.version}" for v in ("", "v"))}
    if name is not None and name not in names:
        raise ConfigError(
            f"the state belongs to a mixture of {', '.join(plan.datasets)}, not of {name!r}; leave out the name"
        )
    return plan, place.step


def _asked(
    plan: BatchPlan, paths: Iterable[str], ids: Iterable[str], values: Iterable[str]
) -> list[Document]:
    found: list[Document] = []
    for option, texts in (("--document", paths), ("--file-id", ids)):
        for text in texts:
            file, colon, position = text.rpartition(":")
            if not colon or not position.isdecimal():
                raise ConfigError(
                    f"{option}: got {text!r}, must end with the document's position, as in a.jsonl:1200"
                )
            if option == "--document":
                found += documents_of(plan, (file, int(position)))
            elif re.fullmatch("-?[0-9]+", file):
                found.append(Document(int(file), int(position)))
            else:
                raise ConfigError(f"--file-id: got {text!r}, must be ID:POSITION, both whole numbers")
    for text in values:
        field, equals, value = text.partition("=")
        if not equals or not field:
            raise ConfigError(f"--id: got {text!r}, must be a field and its value, as in id=a81f")
        found += documents_of(plan, {field: value})
    return found


def _batch(plan: BatchPlan, step: int, row: int | None, json: bool) -> int:
    rows, batch = explain_step(plan, step, row), plan.batch(step)
    if json:
        facts = {"step": step, "passes": batch.passes, "start": batch.start, "size": batch.size}
        print_json({**facts, "rows": [asdict(each) for each in rows]})
        return 0
    after = f" of pass {batch.passes}" if batch.passes else ""
    places = f"{count(batch.start)} to {count(batch.start + batch.rows - 1)}{after}"
    _print_rows(f"step {count(step)}", f"{plural(batch.rows, 'row')}, {places}", plan, rows, steps=False)
    return 0


def _documents(plan: BatchPlan, asked: Sequence[Document], until: int | None, passes: int, json: bool) -> int:
    found = [(each, steps_of_document(plan, each, until=until, passes=passes)) for each in asked]
    if json:
        print_json(
            [
                {"file_id": each.file, "position": each.position, "rows": [asdict(row) for row in rows]}
                for each, rows in found
            ]
        )
        return 0
    for each, rows in found:
        path = next(entry.path for entry in _inputs(plan) if entry.file_id == each.file)
        before = "" if until is None else f" before step {count(until)}"
        seen = f"seen in {plural(len(rows), 'row')}{before}" if rows else f"never seen{before}"
        _print_rows(f"{path}:{each.position}", seen, plan, rows, steps=True)
    return 0


def _print_rows(what: str, more: str, plan: BatchPlan, rows: Iterable[ExplainedRow], *, steps: bool) -> None:
    console = stdout()
    console.print(Text.assemble((printable(what), "bold"), (f"  {more}", "dim")))
    sources = list(dict.fromkeys(entry.source for entry in _inputs(plan)))
    colours = {source: _COLOURS[index % len(_COLOURS)] for index, source in enumerate(sources)}
    mixed = len(plan.datasets) > 1
    for row in rows:
        place = f"step {count(row.step)} row {count(row.row)}" if steps else f"row {count(row.row)}"
        name = f"{row.name} = " if mixed else ""
        stored = f"epoch {row.epoch}, {name}{row.dataset} row {count(row.stored_row)}, {row.shard} row {row.shard_row}"
        console.print(Text.assemble((place, "bold"), (f"  {printable(stored)}", "dim")))
        for segment in row.segments:
            where = printable(f"{segment.source}  {segment.path}:{segment.position}")
            ids = (f"   ids {segment.begin}-{segment.end - 1}  ", "dim")
            tokens = (f"  tokens {segment.start}-{segment.stop - 1} of the document", "dim")
            console.print(Text.assemble(ids, (where, colours[segment.source]), tokens))


def _inputs(plan: BatchPlan) -> list[Any]:
    return [entry for dataset in plan.datasets.values() for entry in dataset.manifest.inputs]
