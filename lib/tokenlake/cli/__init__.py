"""The command line: each command, its function, and one line about it.

Results go to stdout, progress and errors to stderr. A command returns its exit code: 0
done, 1 failed, 2 usage or configuration, 3 verification found damage, 130 cancelled by
Ctrl-C, 143 by SIGTERM. A command's module is imported when that command runs (a string
names it): ``--help`` prints the list below without the packages that read arguments,
and ``run`` reaches Prefect's start-up without importing what only ``sql`` needs.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Final

# Groups of commands, in the order of the list.
BUILD: Final = "Build"
STORE: Final = "Store"
LOOK: Final = "Look inside"
SETUP: Final = "Set up"

# Name -> (place of the function, group, help). Places are texts, so that `--help`
# imports none of them.
COMMANDS: Final = {
    "init": (
        "inspect:init",
        BUILD,
        "Write a commented configuration for your data, and print the next commands.",
    ),
    "inspect": (
        "inspect:inspect",
        BUILD,
        "Inspect raw data, and propose a configuration for it.",
    ),
    "plan": (
        "plan:plan",
        BUILD,
        "Show what a run would do: inputs, units, tokens, output files.",
    ),
    "clean": (
        "build:clean",
        BUILD,
        "List documents to leave out: duplicates, poor text, evaluation sets.",
    ),
    "run": (
        "run:run",
        BUILD,
        "Build a dataset version, or resume an interrupted build.",
    ),
    "import": (
        "token_import:import_files",
        BUILD,
        "Import token ids that other tools made, as a version.",
    ),
    "work": (
        "build:work",
        BUILD,
        "Build units of a planned build, on any machine that reaches its store.",
    ),
    "schema": (
        "inspect:schema",
        BUILD,
        "Print the JSON Schema of a configuration, for editors.",
    ),
    "ls": ("catalog:ls", STORE, "List the datasets of a store and their versions."),
    "show": (
        "version:show",
        STORE,
        "Show a version: totals, splits, audit, tokenizer, lineage, files.",
    ),
    "tag": ("catalog:tag", STORE, "Give a version a movable name, such as prod."),
    "diff": ("catalog:diff", STORE, "Show the differences between two versions."),
    "verify": (
        "version:verify",
        STORE,
        "Check every byte of a version, or of an export, against its manifest.",
    ),
    "repair": (
        "version:repair",
        STORE,
        "Repair the damaged files of a version, byte for byte.",
    ),
    "gc": (
        "catalog:gc",
        STORE,
        "Remove temporary files and unfinished builds that nothing needs.",
    ),
    "rm": (
        "catalog:rm",
        STORE,
        "Remove a version that no tag and no other version needs.",
    ),
    "export": (
        "export:export",
        STORE,
        "Write a version as a folder of Parquet, Arrow or JSON Lines.",
    ),
    "push": (
        "export:push",
        STORE,
        "Upload a version to the Hugging Face Hub, private by default.",
    ),
    "peek": (
        "export:peek",
        LOOK,
        "Decode a few rows, with document boundaries and provenance.",
    ),
    "explain": (
        "explain:explain",
        LOOK,
        "List the documents of a batch, or the batches of a document.",
    ),
    "prove": (
        "prove:prove",
        LOOK,
        "Sign a statement of the data of a checkpoint, or check one.",
    ),
    "report": (
        "export:report",
        LOOK,
        "Write an HTML file about a version, or the pages of a whole store.",
    ),
    "sql": (
        "sql:sql",
        LOOK,
        "Query the datasets of a store with DuckDB, on verified bytes.",
    ),
    "doctor": (
        "doctor:doctor",
        SETUP,
        "Check this machine: packages, disk, store, Hub, Prefect.",
    ),
    "completion": (
        "console:completion",
        SETUP,
        "Print the completion script for bash, zsh or fish.",
    ),
}
SYNONYMS: Final = {
    "add": "run",
    "build": "run",
    "cat": "peek",
    "check": "verify",
    "config": "init",
    "compare": "diff",
    "continue": "run",
    "create": "run",
    "datasets": "ls",
    "delete": "rm",
    "describe": "show",
    "download": "export",
    "dry-run": "plan",
    "explore": "peek",
    "fix": "repair",
    "head": "peek",
    "history": "ls",
    "info": "show",
    "ingest": "import",
    "load": "import",
    "list": "ls",
    "mix": "run",
    "new": "init",
    "pack": "run",
    "preview": "peek",
    "prune": "gc",
    "publish": "push",
    "query": "sql",
    "remove": "rm",
    "resume": "run",
    "rows": "peek",
    "sample": "peek",
    "save": "export",
    "search": "sql",
    "setup": "init",
    "start": "run",
    "stats": "show",
    "status": "ls",
    "tokenize": "run",
    "trace": "explain",
    "upload": "push",
    "validate": "plan",
    "versions": "ls",
    "view": "peek",
    "worker": "work",
}
"""Names under which other tools have our commands."""
OTHER_WAYS: Final = {
    "cancel": "Ctrl-C stops a build, and the same `tokenlake run` resumes it",
    "dashboard": "`tokenlake report --serve` shows the pages of a store",
    "help": "write `tokenlake --help`, or `tokenlake COMMAND --help`",
    "log": "`tokenlake show NAME` shows a version, and `tokenlake ls` the builds and their errors",
    "logs": "`tokenlake show NAME` shows a version, and `tokenlake ls` the builds and their errors",
    "serve": "`tokenlake report --serve` shows the pages of a store",
    "stop": "Ctrl-C stops a build, and the same `tokenlake run` resumes it",
    "train": "training is Python: tl.DataLoader(tl.open('artifacts/NAME'), batch_size=8)",
    "ui": "`tokenlake report --serve` shows the pages of a store",
    "version": "write `tokenlake --version`",
    "web": "`tokenlake report --serve` shows the pages of a store",
}
"""Words that are no commands, and the way to the same end."""
ABOUT: Final = "Raw text to versioned, verified, packed token datasets."
CODES: Final = "Exit codes: 0 done, 1 failed, 2 usage or config, 3 damage found, 130 cancelled (143 by SIGTERM)."
_OPTIONS: Final = {
    "--help, -h": "Print this list; after a command, its arguments and options.",
    "--version, -V": "Print the version.",
}


def overview() -> str:
    """Return the list of all commands, as wide as the terminal."""
    # Each text is wrapped in its column, as wide as the terminal.
    width = shutil.get_terminal_size().columns
    lines = ["Usage: tokenlake COMMAND", "", ABOUT, ""]
    for group in (BUILD, STORE, LOOK, SETUP):
        entries: dict[str, str] = {}
        for name, (_, group_of_command, about) in COMMANDS.items():
            if group_of_command == group:
                entries[name] = about
        lines += [f"{group}:", *_columns(entries, width), ""]
    return "\n".join([*lines, "Options:", *_columns(_OPTIONS, width), "", CODES, ""])


def _columns(entries: dict[str, str], width: int) -> Iterator[str]:
    """Yield ``  name   text``, the text wrapped in its column."""
    indent = max(map(len, entries)) + 5
    for name, text in entries.items():
        yield textwrap.fill(
            text,
            max(width, 2 * indent),
            initial_indent=f"  {name:{indent - 2}}",
            subsequent_indent=" " * indent,
        )
