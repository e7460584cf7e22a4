"""``tokenlake init``: a configuration for one's own data, as a file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Final

import yaml
from cyclopts import Parameter, validators
from rich.text import Text

from tokenlake.cli.console import AsJson, StoreUrl, emit, note
from tokenlake.config.load import load_config
from tokenlake.config.refusals import raise_problems
from tokenlake.config.stores import default_store, store_not_yet, store_problems
from tokenlake.errors import ConfigError, SourceError
from tokenlake.introspection.inspection import Inspection
from tokenlake.introspection.introspector import DatasetIntrospector
from tokenlake.introspection.proposal import SEQ_LENGTH
from tokenlake.printable import printable
from tokenlake.reports.terminal import near, stdout

FILE: Final = "tokenlake.yaml"


def init(
    target: Annotated[Path, Parameter(name="TARGET")] = Path(),
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(metavar="SOURCE")] = (),
    tokenizer: Annotated[str | None, Parameter(metavar="NAME")] = None,
    type: str | None = None,
    seq_length: Annotated[int | None, Parameter(metavar="N", validator=validators.Number(gte=1))] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Look at your data, write a commented configuration for it, and say what comes next.

    On a terminal this asks for what no option says; elsewhere --data is needed. The file is what `tokenlake inspect`
    proposes, with a store. A file that is there is never replaced.

    Args:
        target: A folder, which gets a tokenlake.yaml, or the file. Default: this folder.
        data: A file, directory, glob or URL, or the id of a dataset on the Hub with --type hf. Repeatable.
        tokenizer: A Hub id, a directory or a tokenizer.json file.
        type: The format of the files, if their names do not say it.
        seq_length: Tokens of a packed row. Default: 2048.
    """
    path = target if target.suffix in (".yaml", ".yml") and not target.is_dir() else target / FILE
    _refuse_existing(path)
    asks = sys.stdin is not None and sys.stdin.isatty() and not json  # pyright: ignore[reportUnnecessaryComparison]
    if not data and not asks:
        raise ConfigError("init needs --data: a file, directory, glob or URL; `tokenlake init --data data/`")
    data = data or (_asked("Where is your data (a file, directory, glob or URL)?"),)
    tokenizer = tokenizer or (
        _asked("Which tokenizer (a Hub id, directory or file)?", "later") if asks else ""
    )
    tokenizer = None if tokenizer in ("", "later") else tokenizer
    seq_length = seq_length or (
        _number("How many tokens has a packed row?", SEQ_LENGTH) if asks else SEQ_LENGTH
    )
    usual = default_store()
    store = store or (_asked("Where do the versions go?", usual) if asks else usual)
    found = DatasetIntrospector(data, type=type, tokenizer=tokenizer, seq_length=seq_length).inspect()
    _write(path, _text(found, store))
    missing = "" if tokenizer else "default_tokenizer"
    result = {"path": str(path), "missing": missing or None, "next": _next(path)}
    emit(result, json, lambda: _print(path, missing))
    return 0


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"{path} is there already and stays as it is; name another file: tokenlake init FILE.yaml"
        )


def _asked(question: str, default: str = "") -> str:
    """Ask until there is an answer; an empty one is the default."""
    shown = f" [{default}]" if default else ""
    while True:
        if answer := input(f"{question}{shown} ").strip() or default:
            return answer


def _number(question: str, default: int) -> int:
    while True:
        answer = _asked(question, str(default))
        if answer.isdecimal() and int(answer):
            return int(answer)
        note(f"{printable(answer)!r} is not a whole number above 0")


def _text(found: Inspection, store: str) -> str:
    """Return the configuration, which loads.

    Raises:
        SourceError: there is nothing to build from.
        ConfigError: an option does not fit.
    """
    source = " ".join(found.source)
    if not found.runnable:
        raise SourceError(
            f"no dataset can be built from {source}; `tokenlake inspect {source}` says what was found there"
        )
    place = {"name": yaml.safe_load(found.proposal)["datasets"][0]["name"], "save": {"output_dir": store}}
    save = yaml.safe_dump(place, sort_keys=False, allow_unicode=True)
    comment = (
        "# Versions of the dataset `name` go into this store; other commands take it from TOKENLAKE_STORE."
    )
    text = f"{found.proposal.rstrip()}\n\n{comment}\n{save}"
    config = load_config(yaml.safe_load(text))
    raise_problems(ConfigError, store_problems(config, store) + store_not_yet(store))
    return text


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _refuse_existing(path)
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another place") from error


def _next(path: Path) -> list[str]:
    place = shlex.quote(near(str(path)))
    return [f"tokenlake plan {place}", f"tokenlake run {place}"]


def _print(path: Path, missing: str) -> None:
    console = stdout()
    first = f" First set {missing} in it." if missing else ""
    console.print(Text(f"{near(str(path))} is written; its comments say what was found.{first}"))
    console.print(Text("\nNext", style="bold"))
    for command in _next(path):
        console.print(Text(command), soft_wrap=True)
