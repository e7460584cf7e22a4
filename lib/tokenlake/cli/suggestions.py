"""Suggestions for options and words that a command does not have.

Other tools have options that are keys of a configuration here, arguments, or options of
another name. A message names the words to type instead:

    >>> advice_on_option("run", "--seq-len", [])
    'write --set pack.seq_length=N'
    >>> advice_on_option("export", "--output", [])
    'name the folder after the dataset: tokenlake export NAME FOLDER'
    >>> advice_on_words("run", ["pack.seq_length=512"])
    'write --set pack.seq_length=512'
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

_EVERY_COMMAND: Final = ""
"""Name under which options are listed that no command has."""

_ENOUGH_ALIKE: Final = 0.75
"""Smallest similarity of an option that is suggested for another one."""

_STORE_OPTIONS: Final = ("--output", "--out", "-o", "--output-dir", "--out-dir")
_WORKER_OPTIONS: Final = (
    "--num-workers",
    "--num-proc",
    "--jobs",
    "-j",
    "--threads",
    "--processes",
)
_VERBOSE_OPTIONS: Final = ("--verbose", "-v", "--debug", "--log-level")
_QUIET_OPTIONS: Final = ("--quiet", "-q", "--silent")

_KEYS: Final = {
    "--seq-length": "pack.seq_length=N",
    "--seq-len": "pack.seq_length=N",
    "--sequence-length": "pack.seq_length=N",
    "--max-length": "tokenize.max_length=N",
    "--max-len": "tokenize.max_length=N",
    "--tokenizer": "default_tokenizer=NAME",
    "--seed": "seed=N",
    "--name": "name=NAME",
    "--pack": "pack.enabled=true",
    "--packing": "pack.enabled=true",
    "--shuffle": "pack.shuffle_packed=true",
    "--num-shards": "save.num_shards=N",
    "--shard-size": "save.max_shard_size=SIZE",
    "--compression": "save.compression=NAME",
    "--strategy": "pack.strategy=NAME",
}
"""Option -> key of a configuration with its value."""


def _advice_on_builds() -> dict[tuple[str, str], str]:
    """Return (command, option) -> the words to type instead, for commands that build
    or plan.
    """
    advice: dict[tuple[str, str], str] = {}
    for command in ("run", "plan", "clean"):
        for option, key in _KEYS.items():
            advice[command, option] = f"write --set {key}"
        for option in ("--config", "-c"):
            advice[command, option] = (
                f"name the file without an option: tokenlake {command} CONFIG"
            )
        for option in ("--data", "--data-files", "--input", "-i"):
            advice[command, option] = (
                "the configuration names the data: `tokenlake init --data SOURCE` writes one, and --set "
                "datasets.NAME.data_files=PATH replaces it"
            )
    for command in ("run", "plan"):
        for option in _STORE_OPTIONS:
            advice[command, option] = (
                "versions are written to a store: --store FOLDER or URL"
            )
    for command in ("run", "clean", "work", "repair"):
        for option in _WORKER_OPTIONS:
            advice[command, option] = "write --workers N"
        for option in _VERBOSE_OPTIONS:
            advice[command, option] = "write --set observability.log_level=DEBUG"
        for option in _QUIET_OPTIONS:
            advice[command, option] = "write --set observability.log_level=WARNING"
    for option in ("--dry-run", "--dryrun", "-n"):
        advice["run", option] = "`tokenlake plan CONFIG` shows what a run would do"
    for option in ("--force", "--overwrite", "-f"):
        advice["run", option] = (
            "a run replaces nothing: a change of inputs or configuration gives a new version"
        )
    advice["run", "--resume"] = (
        "leave it out: the same command resumes an interrupted build"
    )
    return advice


def _advice_on_versions() -> dict[tuple[str, str], str]:
    """Return (command, option) -> the words to type instead, for commands about
    versions, and for all commands.
    """
    advice: dict[tuple[str, str], str] = {}
    for option in ("--force", "-f"):
        advice["rm", option] = (
            "rm asks no questions, and removes no version that a tag or another version needs"
        )
    for option in ("--output", "--out", "-o", "--output-dir", "--to", "--target"):
        advice["export", option] = (
            "name the folder after the dataset: tokenlake export NAME FOLDER"
        )
        advice["init", option] = (
            "name the file without an option: tokenlake init FILE.yaml --data SOURCE"
        )
    advice["export", "-f"] = "write --format NAME"
    for option in ("--rows", "--n", "--num", "--num-rows", "--count", "--limit"):
        advice["peek", option] = "write -n N for the number of rows"
    for option in ("--bs", "--batch", "--batchsize"):
        advice["explain", option] = "write --batch-size N"
    for option in ("--full", "--all-bytes", "--thorough", "--decode"):
        advice["verify", option] = "write --deep to decode every row"
    for option in ("--older-than", "--age", "--days", "--keep"):
        advice["gc", option] = "write --grace SPAN, such as --grace 7d"
    advice["gc", "--all"] = "leave it out: all datasets are the default"
    advice["push", "--repository"] = advice["push", "--repo-id"] = (
        "write --repo ORG/NAME"
    )
    advice["report", "--html"] = "leave it out: a report is an HTML file"
    advice["init", "--tok"] = "write --tokenizer NAME"
    for option in (*_VERBOSE_OPTIONS, *_QUIET_OPTIONS):
        advice[_EVERY_COMMAND, option] = (
            "messages are on stderr and results on stdout, with --json for programs"
        )
    for option in ("--yes", "-y"):
        advice[_EVERY_COMMAND, option] = "leave it out: commands ask no questions"
    return advice


_ADVICE: Final = {**_advice_on_builds(), **_advice_on_versions()}
"""(command, option) -> the words to type instead."""

_KEY_AND_VALUE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*=.*", re.DOTALL)
_VERSION: Final = re.compile(r"v?[1-9][0-9]{0,8}")


def advice_on_option(command: str, option: str, known_options: Iterable[str]) -> str:
    """Return the words to type instead of an option that a command lacks; "" if
    there is no answer.

    Args:
        command: Name of the command.
        option: Option as it was typed, with or without a value: ``--out=x``.
        known_options: Options of the command.
    """
    # Other tools write options with underscores.
    name = option.partition("=")[0]
    name = name.replace("_", "-")
    advice = _ADVICE.get((command, name)) or _ADVICE.get((_EVERY_COMMAND, name))
    if advice is not None:
        return advice
    similar = difflib.get_close_matches(name, known_options, 1, _ENOUGH_ALIKE)
    if similar:
        return f"did you mean {similar[0]}?"
    return ""


def advice_on_words(command: str, words: Sequence[str]) -> str:
    """Return the words to type instead of others that a command cannot use; "" if there
    is no answer.

    Args:
        command: Name of the command.
        words: Words, in their order.
    """
    word = words[0]
    if command in ("run", "plan", "clean") and _KEY_AND_VALUE.fullmatch(word):
        return f"write --set {word}"
    if command == "sql":
        return "put the statement in quotes: tokenlake sql 'select 1'"
    if command == "push":
        return f"write --repo {word}"
    if command == "init":
        return f"write --data {word}"
    if command == "peek" and word.isdecimal():
        return f"write -n {word} for the number of rows, or --row {word} for the first of them"
    if _VERSION.fullmatch(word):
        return f"a version is written NAME@v{word.removeprefix('v')}"
    return ""
