"""``tokenlake prove``: a signed statement of the data that a checkpoint was trained on."""

from __future__ import annotations

import json as _json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tokenlake.base.numbers import count, plural
from tokenlake.cli.console import AsJson, Data, StoreUrl, emit, note
from tokenlake.errors import ConfigError
from tokenlake.etl.reports import Table, facts, label, number
from tokenlake.etl.reports.terminal import print_tables
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.dataset import open as open_dataset
from tokenlake.runtime.loader.state import Opener
from tokenlake.runtime.proof.overlap import EvaluationSet
from tokenlake.runtime.proof.rows import Takedown
from tokenlake.runtime.proof.signature import public_key as key_of
from tokenlake.runtime.proof.statement import NGRAM, check_statement, prove_state, read_statement
from tokenlake.runtime.store.outputs import require_outside_stores
from tokenlake.runtime.store.schemes import default_store

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
