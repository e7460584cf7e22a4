"""``tokenlake explain`` and ``prove``: what batches hold, and what a checkpoint was trained on."""

from __future__ import annotations

import json as _json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

from cyclopts import Parameter
from rich.text import Text

from tokenlake.cli.console import AsJson, Data, StoreUrl, emit, note, print_json
from tokenlake.config.values import default_store
from tokenlake.errors import ConfigError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.dataset import open as open_dataset
from tokenlake.loader.explain import Document, ExplainedRow, documents_of, explain_step, steps_of_document
from tokenlake.loader.options import LoaderOptions
from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.state import Opener, restored
from tokenlake.markup import printable
from tokenlake.numbers import count, plural
from tokenlake.proof.overlap import EvaluationSet
from tokenlake.proof.rows import Takedown
from tokenlake.proof.signature import public_key as key_of
from tokenlake.proof.statement import NGRAM, check_statement, prove_state, read_statement
from tokenlake.reports import Table, facts, label, number
from tokenlake.reports.terminal import print_tables, stdout
from tokenlake.store.outputs import require_outside_stores

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


_STATES: Final = ("data/metadata", "loader.json", "metadata")
"""Where checkpoints keep the state of a loader: those of tl.Trainer and Orbax, of the examples, of Orbax alone."""
_TEXTS: Final = (".jsonl", ".json", ".parquet")
_SOURCES: Final = (
    label("name", "dataset"),
    number("rows"),
    number("tokens"),
    label("epochs"),
    label("version"),
)
_SETS: Final = (
    label("name", "evaluation set"),
    number("documents"),
    number("documents_with", "with an n-gram that was read"),
    number("ngrams", "n-grams"),
    number("found"),
)


def prove(
    state: Path | None = None,
    /,
    *,
    key: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    key_env: Annotated[str | None, Parameter(metavar="NAME")] = None,
    first_step: Annotated[int, Parameter(metavar="A")] = 0,
    takedown: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    evaluation: Annotated[tuple[str, ...], Parameter(metavar="NAME=SET")] = (),
    ngram: Annotated[int, Parameter(metavar="N")] = NGRAM,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], metavar="FILE")] = None,
    check: Annotated[Path | None, Parameter(metavar="STATEMENT")] = None,
    public_key: Annotated[str | None, Parameter(metavar="KEY")] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Sign a statement of what a checkpoint was trained on, or check one (--check).

    A statement says which versions were read, by the hashes of their manifests, and how many rows, tokens and epochs of
    each; when a document of a takedown list was last delivered; and which n-grams of evaluation sets were read. All of
    it is computed from the loader's state, and --check computes it again.

    Args:
        state: The state of a loader as JSON, or the folder of a checkpoint. With --check: the statement must be of it.
        key: The private key that signs, Ed25519, a PEM file.
        key_env: The environment variable that holds the text of such a file.
        first_step: The first step that counts; the last one is that before the state. Default: 0.
        takedown: Documents that should not have been read: Parquet with the columns `file` and `position`.
        evaluation: An evaluation set, looked for in all rows that were read: NAME=FILE, Parquet or JSON Lines with a
            column `text`, or NAME=DATASET@v1/SPLIT. Repeatable.
        ngram: Tokens of an n-gram. Default: 13.
        output: Write the statement to this file. Default: standard output.
        check: The statement to check, with the same --takedown and --evaluation.
        public_key: Whose signature it must have: 64 hexadecimal digits, or a PEM file.
    """
    where = store or default_store()

    def opened(version: str, split: str) -> Dataset:
        return open_dataset(where, version, split=split)

    listed = None if takedown is None else Takedown.read(takedown)
    if check is not None:
        if key or key_env or output or first_step or ngram != NGRAM:
            raise ConfigError("--check takes none of --key, --key-env, --first-step, --ngram and --output")
        if public_key is None:
            raise ConfigError(
                "--check needs --public-key: without it any key could have signed the statement"
            )
        statement, signer = _bytes_of(check, "--check"), key_of(public_key)
        sets = _sets(evaluation, read_statement(statement, signer)["state"], opened)
        expected = None if state is None else _state_of(state)
        found = check_statement(statement, signer, opened, takedown=listed, evaluation=sets, state=expected)
        note(f"{check} holds: it is signed by this key, and all of it was computed again")
    else:
        if state is None or public_key is not None:
            raise ConfigError(
                "name the state of a loader and a key: STATE --key FILE; or --check STATEMENT --public-key KEY"
            )
        saved = _state_of(state)
        if output is not None:
            require_outside_stores(output, "--output")
        if (key is None) == (key_env is None):
            raise ConfigError(
                "give one of --key and --key-env; openssl genpkey -algorithm ed25519 -out key.pem makes a key"
            )
        signing = str(key) if key_env is None else {"env": key_env}
        sets = _sets(evaluation, saved, opened)
        made = prove_state(
            saved, opened, signing, first_step=first_step, takedown=listed, evaluation=sets, ngram=ngram
        )
        if output is None:
            Data().write(made.decode())
            return 0
        output.write_bytes(made)
        found = _json.loads(made)
    emit(found, json, lambda: _show(found))
    return 0


def _state_of(path: Path) -> dict[str, Any]:
    """Read a state: of a file, of a checkpoint, or of the newest checkpoint in a folder."""
    if path.is_dir():
        steps = sorted(path.iterdir(), key=lambda each: (len(each.name), each.name))
        files = [folder / name for folder in (path, *reversed(steps)) for name in _STATES]
        if not (found := [file for file in files if file.is_file()]):
            raise ConfigError(
                f"state {path}: this folder holds no checkpoint with the state of a loader; expected one of "
                f"{', '.join(_STATES)} in it or in a folder of it, or the file itself"
            )
        path = found[0]
    try:
        return dict(_json.loads(_bytes_of(path, "state")))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"state {path}: it is no JSON object ({error}); expected what get_state() returned"
        ) from error


def _bytes_of(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from error


def _sets(asked: Iterable[str], state: dict[str, Any], opened: Opener) -> dict[str, EvaluationSet]:
    """Read evaluation sets; texts become ids by the tokenizer of the state's datasets."""
    found: dict[str, EvaluationSet] = {}
    for each in asked:
        name, equals, where = each.partition("=")
        if not (name and equals and where) or name in found:
            raise ConfigError(
                f"--evaluation: got {each!r}, must be NAME=FILE or NAME=DATASET@v1/SPLIT, each name once"
            )
        if where.endswith(_TEXTS):
            first = next(iter(state["sources"].values()))["dataset"].rpartition("/")
            found[name] = EvaluationSet.of_texts(Path(where), opened(first[0], first[2]).tokenizer)
        else:
            version, slash, split = where.partition("/")
            if not slash:
                raise ConfigError(
                    f"--evaluation: got {each!r}, must name a split, as in {name}={version}/validation"
                )
            found[name] = EvaluationSet.of_dataset(opened(version, split))
    return found


def _show(statement: dict[str, Any]) -> None:
    first, end = statement["steps"]
    pairs = [
        ("steps", f"{count(first)} to {count(end - 1)}" if first < end else "none"),
        ("public key", statement["public_key"]),
    ]
    if (listed := statement["takedown"]) is not None:
        documents = f"{plural(listed['documents'], 'document')}, {count(listed['stored'])} of them stored"
        when = "none was delivered in these steps"
        if listed["first_step"] is not None:
            begin, last, clear = (count(listed[name]) for name in ("first_step", "last_step", "none_from"))
            when = f"delivered first at step {begin}, last at step {last}; none from step {clear} on"
        pairs.append(("takedown", f"{documents}; {when}"))
    sources: list[dict[str, Any]] = []
    for name, each in statement["sources"].items():
        repeated, version = each["repetitions"], statement["datasets"][name]["name"]
        epochs = f"{repeated['whole'] + repeated['rest'] / repeated['of']:.3f}"
        sources.append(each | {"name": name, "epochs": epochs, "version": version})
    tables = [facts(pairs), Table.of(_SOURCES, sources)]
    if (overlap := statement["overlap"]) is not None:
        sets = [each | {"name": name} for name, each in overlap["sets"].items()]
        tables.append(
            Table.of(_SETS, sets, f"{overlap['n']}-grams in {plural(overlap['rows'], 'row')} that were read")
        )
    print_tables(tables)
