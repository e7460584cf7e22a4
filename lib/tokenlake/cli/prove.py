"""``tokenlake prove``: a signed statement of the data of a checkpoint."""

from __future__ import annotations

import json as _json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tokenlake.base.numbers import count, plural
from tokenlake.cli.console import AsJson, Data, StoreUrl, emit, note, working
from tokenlake.errors import ConfigError
from tokenlake.etl.reports import Table, facts, label, number
from tokenlake.etl.reports.terminal import print_tables
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.dataset import open as open_dataset
from tokenlake.runtime.loader.state import Opener
from tokenlake.runtime.proof.overlap import EvaluationSet
from tokenlake.runtime.proof.rows import Takedown
from tokenlake.runtime.proof.signature import public_key as key_of
from tokenlake.runtime.proof.statement import (
    NGRAM,
    check_statement,
    prove_state,
    read_statement,
)
from tokenlake.runtime.store.outputs import require_outside_stores
from tokenlake.runtime.store.schemes import default_store

# Paths of the state of a loader in checkpoints: those of tl.Trainer and Orbax, of the
# examples, of Orbax alone.
_STATES: Final = ("data/metadata", "loader.json", "metadata")
_TEXTS: Final = (".jsonl", ".json", ".parquet")  # endings of evaluation sets in files

# Columns of the tables of a statement.
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
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], metavar="FILE")
    ] = None,
    check: Annotated[Path | None, Parameter(metavar="STATEMENT")] = None,
    public_key: Annotated[str | None, Parameter(metavar="KEY")] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Sign a statement of the data that a checkpoint was trained on, or check one
    (--check).

    A statement names the versions that were read, by the hashes of their manifests, and
    the rows, tokens and epochs of each; the last step that delivered a document of a
    takedown list; and the n-grams of evaluation sets that were read. All of it is
    computed from the loader's state, and --check computes it again.

    Args:
        state: State of a loader as JSON, or the folder of a checkpoint. With --check:
            the statement must be about this state.
        key: The private key that signs, Ed25519, a PEM file.
        key_env: The environment variable that holds the text of such a file.
        first_step: First step of the statement; its last step is the one before the
            state. Default: 0.
        takedown: Documents that should not have been read: Parquet with the columns
            `file` and `position`.
        evaluation: Evaluation set that is searched for in all rows that were read:
            NAME=FILE, Parquet or JSON Lines with a column `text`, or
            NAME=DATASET@v1/SPLIT. Repeatable.
        ngram: Number of tokens per n-gram. Default: 13.
        output: Write the statement to this file. Default: standard output.
        check: The statement to check, with the same --takedown and --evaluation.
        public_key: Public key of the required signature: 64 hexadecimal digits, or a
            PEM file.
    """
    url = store or default_store()

    def open_version(version: str, split: str) -> Dataset:
        return open_dataset(url, version, split=split)

    # 1. Checking needs a statement, signing a state and a key; both need the takedown
    #    list.
    takedown_list: Takedown | None = None
    if takedown is not None:
        takedown_list = Takedown.read(takedown)
    if check is not None:
        if key or key_env or output or first_step or ngram != NGRAM:
            raise ConfigError(
                "--check takes none of --key, --key-env, --first-step, --ngram and --output"
            )
        statement = _checked_statement(
            check, public_key, state, open_version, takedown_list, evaluation
        )
    else:
        if state is None or public_key is not None:
            raise ConfigError(
                "name the state of a loader and a key: STATE --key FILE; or --check STATEMENT --public-key KEY"
            )
        # 2. Everything is read and checked before the long work begins.
        loader_state = _read_state(state)
        if output is not None:
            require_outside_stores(output, "--output")
        signing_key = _signing_key(key, key_env)
        sets = _evaluation_sets(evaluation, loader_state, open_version)
        with working("reading the provenance of all rows that were delivered"):
            signed = prove_state(
                loader_state,
                open_version,
                signing_key,
                first_step=first_step,
                takedown=takedown_list,
                evaluation=sets,
                ngram=ngram,
            )
        # The signature is of these very bytes, so that they are written unchanged.
        if output is None:
            Data().write(signed.decode())
            return 0
        output.write_bytes(signed)
        statement = _json.loads(signed)
    emit(statement, json, lambda: _print_statement(statement))
    return 0


def _checked_statement(
    path: Path,
    public_key: str | None,
    state: Path | None,
    open_version: Opener,
    takedown: Takedown | None,
    evaluation: Iterable[str],
) -> dict[str, Any]:
    """Return a statement whose signature holds, and whose figures were computed again.

    Args:
        path: File of the statement.
        public_key: Key of the signer: 64 hexadecimal digits, or a PEM file.
        state: State of a loader that the statement must be about. None: the one in the
            statement.
        open_version: Function that opens a split of a version.
        takedown: Documents that should not have been read, as in the statement.
        evaluation: Evaluation sets of the statement, as ``NAME=SET``.

    Raises:
        ConfigError: `public_key` is missing, or a file cannot be read.
        IntegrityError: The statement does not hold.
    """
    if public_key is None:
        raise ConfigError(
            "--check needs --public-key: without it any key could have signed the statement"
        )
    signed = _read_file(path, "--check")
    # The signature is checked first: evaluation sets are read by the state in the
    # statement.
    signer = key_of(public_key)
    signed_state = read_statement(signed, signer)["state"]
    sets = _evaluation_sets(evaluation, signed_state, open_version)
    expected_state: dict[str, Any] | None = None
    if state is not None:
        expected_state = _read_state(state)
    statement = check_statement(
        signed,
        signer,
        open_version,
        takedown=takedown,
        evaluation=sets,
        state=expected_state,
    )
    note(
        f"{path} is valid: it is signed by this key, and all figures were computed again"
    )
    return statement


def _signing_key(key: Path | None, key_env: str | None) -> str | dict[str, str]:
    """Return the file of the private key, or the environment variable that holds it.

    Raises:
        ConfigError: Neither option is given, or both.
    """
    if key is not None and key_env is None:
        return str(key)
    if key_env is not None and key is None:
        return {"env": key_env}
    raise ConfigError(
        "give one of --key and --key-env; openssl genpkey -algorithm ed25519 -out key.pem makes a key"
    )


def _read_state(path: Path) -> dict[str, Any]:
    """Read the state of a loader from a file, or from the newest checkpoint.

    Raises:
        ConfigError: No state lies there, or it is not a JSON object.
    """
    state_file = path
    if path.is_dir():
        state_file = _state_file(path)
    try:
        return dict(_json.loads(_read_file(state_file, "state")))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"state {state_file}: it is not a JSON object ({error}); expected the result of get_state()"
        ) from error


def _state_file(folder: Path) -> Path:
    """Return the file with the state in a checkpoint, or in the newest of a folder."""

    # Names of checkpoints end with a step: 900 comes before 1000, so the length counts
    # first.
    def length_and_name(entry: Path) -> tuple[int, str]:
        return len(entry.name), entry.name

    checkpoints = sorted(folder.iterdir(), key=length_and_name, reverse=True)
    for checkpoint in [folder, *checkpoints]:
        for relative_path in _STATES:
            state_file = checkpoint / relative_path
            if state_file.is_file():
                return state_file
    raise ConfigError(
        f"state {folder}: this folder contains no checkpoint with the state of a loader; expected one of "
        f"{', '.join(_STATES)} in it or in a folder of it, or the file itself"
    )


def _read_file(path: Path, option: str) -> bytes:
    """Return the bytes of a file that an option names.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be read: {error.strerror}"
        ) from error


def _evaluation_sets(
    definitions: Iterable[str], state: dict[str, Any], open_version: Opener
) -> dict[str, EvaluationSet]:
    """Read evaluation sets; texts become ids by the tokenizer of the state's datasets.

    Args:
        definitions: Name and place of each set: ``NAME=FILE`` or
            ``NAME=DATASET@v1/SPLIT``.
        state: State of a loader, which names its datasets.
        open_version: Function that opens a split of a version.

    Raises:
        ConfigError: A definition has another form, or a name comes twice.
    """
    evaluation_sets: dict[str, EvaluationSet] = {}
    for definition in definitions:
        set_name, equals, place = definition.partition("=")
        if not (set_name and equals and place) or set_name in evaluation_sets:
            raise ConfigError(
                f"--evaluation: got {definition!r}, must be NAME=FILE or NAME=DATASET@v1/SPLIT, each name once"
            )
        if place.endswith(_TEXTS):
            # A file of texts, which the tokenizer of the first source encodes.
            first_source = next(iter(state["sources"].values()))
            version, _, split = first_source["dataset"].rpartition("/")
            tokenizer = open_version(version, split).tokenizer
            evaluation_sets[set_name] = EvaluationSet.of_texts(Path(place), tokenizer)
            continue
        # A split of a version, whose ids are compared as they are.
        version, slash, split = place.partition("/")
        if not slash:
            raise ConfigError(
                f"--evaluation: got {definition!r}, must name a split, as in {set_name}={version}/validation"
            )
        evaluation_sets[set_name] = EvaluationSet.of_dataset(
            open_version(version, split)
        )
    return evaluation_sets


def _print_statement(statement: dict[str, Any]) -> None:
    """Print the steps, sources, takedown list and evaluation sets of a statement."""
    first_step, end_step = statement["steps"]
    steps = "none"
    if first_step < end_step:
        steps = f"{count(first_step)} to {count(end_step - 1)}"
    rows = [("steps", steps), ("public key", statement["public_key"])]
    if statement["takedown"] is not None:
        rows.append(("takedown", _takedown_in_words(statement["takedown"])))

    # Epochs of a source: whole ones, and the rest as a fraction of its rows.
    sources: list[dict[str, Any]] = []
    for source_name, source in statement["sources"].items():
        repetitions = source["repetitions"]
        epochs = repetitions["whole"] + repetitions["rest"] / repetitions["of"]
        version = statement["datasets"][source_name]["name"]
        record = {"name": source_name, "epochs": f"{epochs:.3f}", "version": version}
        sources.append(source | record)
    tables = [facts(rows), Table.of(_SOURCES, sources)]

    # Evaluation sets are searched only on request.
    overlap = statement["overlap"]
    if overlap is not None:
        evaluation_sets: list[dict[str, Any]] = []
        for set_name, evaluation_set in overlap["sets"].items():
            evaluation_sets.append(evaluation_set | {"name": set_name})
        rows_read = plural(overlap["rows"], "row")
        title = f"{overlap['n']}-grams in {rows_read} that were read"
        tables.append(Table.of(_SETS, evaluation_sets, title))
    print_tables(tables)


def _takedown_in_words(takedown: dict[str, Any]) -> str:
    """Return the documents of a takedown list, and the steps that delivered them."""
    documents = plural(takedown["documents"], "document")
    stored = f"{documents}, {count(takedown['stored'])} of them stored"
    if takedown["first_step"] is None:
        return f"{stored}; none was delivered in these steps"
    first = count(takedown["first_step"])
    last = count(takedown["last_step"])
    free_from = count(takedown["none_from"])
    return f"{stored}; delivered first at step {first}, last at step {last}; none from step {free_from} on"
