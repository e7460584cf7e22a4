"""``tokenlake init``, ``inspect`` and ``schema``: help to write a configuration."""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final

import yaml
from cyclopts import Parameter, validators
from rich.console import Console
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.cli.console import AsJson, Data, StoreUrl, note, print_json, working
from tokenlake.config.contradictions import (
    raise_problems,
    store_not_yet,
    store_problems,
)
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import json_schema
from tokenlake.errors import ConfigError, SourceError
from tokenlake.etl.introspection.inspection import NAMES, Group, Inspection
from tokenlake.etl.introspection.introspector import DatasetIntrospector
from tokenlake.etl.introspection.introspector import inspect as inspect_source
from tokenlake.etl.introspection.proposal import SEQ_LENGTH
from tokenlake.etl.reports import Table, facts, label
from tokenlake.etl.reports.terminal import near, print_table, stdout
from tokenlake.runtime.store.outputs import require_outside_stores
from tokenlake.runtime.store.schemes import default_store

FILE: Final = "tokenlake.yaml"


def init(
    target: Annotated[Path, Parameter(name="TARGET")] = Path(),
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(metavar="SOURCE")] = (),
    tokenizer: Annotated[str | None, Parameter(metavar="NAME")] = None,
    type: str | None = None,
    seq_length: Annotated[
        int | None, Parameter(metavar="N", validator=validators.Number(gte=1))
    ] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Inspect your data, write a commented configuration for it, and print the next
    commands.

    On a terminal this asks for missing options; elsewhere --data is needed. The file is
    the proposal of `tokenlake inspect`, with a store. An existing file is never
    replaced.

    Args:
        target: Folder in which tokenlake.yaml is written, or the file itself. Default:
            this folder.
        data: A file, directory, glob or URL, or the id of a dataset on the Hub with
            --type hf. Repeatable.
        tokenizer: A Hub id, a directory or a tokenizer.json file.
        type: Format of the files, if their names do not show it.
        seq_length: Number of tokens per packed row. Default: 2048.
    """
    path = (
        target
        if target.suffix in (".yaml", ".yml") and not target.is_dir()
        else target / FILE
    )
    _refuse_existing(path)
    require_outside_stores(path, "init")
    is_terminal = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]
    may_ask = is_terminal and not json
    if not data and not may_ask:
        raise ConfigError(
            "init needs --data: a file, directory, glob or URL; `tokenlake init --data data/`"
        )

    # The options that are missing are asked for on a terminal, and have defaults
    # elsewhere.
    if not data:
        data = (_ask("Where is your data (a file, directory, glob or URL)?"),)
    if may_ask and not tokenizer:
        tokenizer = _ask("Which tokenizer (a Hub id, directory or file)?", "later")
    if tokenizer in ("", "later"):
        tokenizer = None
    if seq_length is None:
        seq_length = _ask_seq_length() if may_ask else SEQ_LENGTH
    if not store:
        store = (
            _ask("Store for the versions?", default_store())
            if may_ask
            else default_store()
        )

    introspector = DatasetIntrospector(
        data, type=type, tokenizer=tokenizer, seq_length=seq_length
    )
    with working("looking into the data"):
        inspection = introspector.inspect()
    text = _configuration(inspection, store)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _refuse_existing(path)
        raise
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; name another place"
        ) from error

    missing = None if tokenizer else "default_tokenizer"
    commands = [
        f"tokenlake {command} {shlex.quote(near(str(path)))}"
        for command in ("plan", "run")
    ]
    if json:
        print_json({"path": str(path), "missing": missing, "next": commands})
        return 0
    sentence = f"{near(str(path))} is written; its comments explain the findings."
    if missing:
        sentence += f" First set {missing} in it."
    console = stdout()
    console.print(Text(sentence))
    console.print(Text("\nNext", style="bold"))
    for command in commands:
        console.print(Text(command), soft_wrap=True)
    return 0


def _refuse_existing(path: Path) -> None:
    """Raise ConfigError if a file, or a link, has the name of the configuration to
    write.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"{path} already exists and was not changed; name another file: tokenlake init FILE.yaml"
        )


def _ask(question: str, default: str = "") -> str:
    """Ask until there is an answer; an empty one is the default."""
    prompt = f"{question} [{default}] " if default else f"{question} "
    while True:
        answer = input(prompt).strip() or default
        if answer:
            return answer


def _ask_seq_length() -> int:
    """Ask for the number of tokens of a packed row until the answer is a whole
    number above 0.
    """
    while True:
        answer = _ask("Tokens per packed row?", str(SEQ_LENGTH))
        if answer.isdecimal() and int(answer) > 0:
            return int(answer)
        note(f"{printable(answer)!r} is not a whole number above 0")


def _configuration(inspection: Inspection, store: str) -> str:
    """Return the text of a configuration that loads: the proposal, a name and a store.

    Args:
        inspection: Result of the look at the data.
        store: Path or URL of the store.

    Raises:
        SourceError: The data has no files to build from.
        ConfigError: An option does not fit.
    """
    source = " ".join(inspection.source)
    if not inspection.runnable:
        raise SourceError(
            f"no dataset can be built from {source}; `tokenlake inspect {source}` prints the findings"
        )
    name = yaml.safe_load(inspection.proposal)["datasets"][0]["name"]
    options = {"name": name, "save": {"output_dir": store}}
    save = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
    comment = "# Versions of the dataset `name` are written to this store; other commands read TOKENLAKE_STORE."
    text = f"{inspection.proposal.rstrip()}\n\n{comment}\n{save}"
    config = load_config(yaml.safe_load(text))
    raise_problems(ConfigError, store_problems(config, store) + store_not_yet(store))
    return text


_INDENT = 2
_VALUE_LINES = 2  # lines of a sample's value on a terminal
_PLAIN_CHARACTERS = 300  # characters of a sample's value elsewhere
_FINDINGS = 20  # findings that are listed


def inspect(
    source: Annotated[tuple[str, ...], Parameter(metavar="SOURCE")],
    /,
    *,
    type: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    rows: Annotated[int, Parameter(metavar="N")] = 3,
    tokenizer: Annotated[str | None, Parameter(metavar="NAME")] = None,
    storage_options: Annotated[str | None, Parameter(metavar="JSON")] = None,
    yaml: Annotated[bool | None, Parameter(negative="--no-yaml")] = None,
    json: AsJson = False,
) -> int:
    """Inspect raw data without reading all of it, and propose a configuration for it.

    On a terminal this prints all findings; into a file or a pipe, only the proposal. So
    `tokenlake inspect data/ --tokenizer NAME > books.yaml` and then `tokenlake run
    books.yaml` build a dataset.

    At most 8 files are opened, and at most 4 MiB of each is read. The exit code is 1 if
    nothing can be proposed.

    Args:
        source: A file, directory, glob or URL, or the id of a dataset on the Hub with
            --type hf.
        type: Format of the files, if their names do not show it.
        subset: Subset of a dataset on the Hub, or of a folder whose README.md names
            subsets.
        split: Split of a dataset on the Hub, or of files whose names define splits.
            Default: train, otherwise the first one.
        rows: Number of sample records to show. Default: 3.
        tokenizer: Tokenizer for the proposal.
        storage_options: Options of the file system, with credentials by reference:
            {"key": {"env": "NAME"}}.
        yaml: Print only the proposed configuration. Default: yes, unless stdout is a
            terminal.
    """
    overrides = (
        () if storage_options is None else (f"storage_options={storage_options}",)
    )
    with working("looking into the data"):
        inspection = inspect_source(
            source,
            type=type,
            subset=subset,
            split=split,
            overrides=overrides,
            rows=rows,
            tokenizer=tokenizer,
        )
    prints_proposal = not sys.stdout.isatty() if yaml is None else yaml
    if json:
        print_json(inspection.to_json())
    elif prints_proposal:
        Data().write(inspection.proposal)
    else:
        _print_page(inspection, stdout())
        return 0
    # Facts that a user who redirects stdout must know.
    fatal = sum(finding.fatal for finding in inspection.findings)
    if fatal:
        note(
            f"note: {numbers.plural(fatal, 'file')} cannot be read; the comments state the reason"
        )
    if not inspection.runnable:
        note(
            "note: this release cannot build a dataset from these files; the comments state the reason"
        )
    elif tokenizer is None:
        note("note: the proposal names no tokenizer; add one, or use --tokenizer NAME")
    return 0 if inspection.runnable or json else 1


def schema() -> int:
    """Print the JSON Schema of a pipeline configuration.

    An editor that knows the schema completes and checks a configuration while you type.
    Save the schema as tokenlake.runtime.schema.json and begin the YAML file with `#
    yaml-language-server: $schema=tokenlake.runtime.schema.json`.
    """
    print_json(json_schema())
    return 0


def _print_page(inspection: Inspection, console: Console) -> None:
    """Print the files, the groups, the findings and the proposed configuration."""
    console.print(Text(" ".join(inspection.source), style="bold"))
    lines = [
        f"{numbers.plural(inspection.files, 'file')}, {numbers.size(inspection.bytes)}; sampled "
        f"{numbers.count(inspection.looked_into)}, read {numbers.size(inspection.bytes_read)}"
    ]
    if inspection.configs:
        lines.append(f"subsets: {', '.join(inspection.configs)}")
    if inspection.splits:
        splits: list[str] = []
        for split in inspection.splits:
            files = numbers.plural(split.files, "file")
            splits.append(f"{split.name} ({files}, {numbers.size(split.bytes)})")
        lines.append(f"splits: {', '.join(splits)}")
    console.print(Text("\n".join(lines)))
    for group in inspection.groups:
        console.print()
        _print_group(group, console)
    if inspection.findings:
        rows = [
            (finding.file, finding.what) for finding in inspection.findings[:_FINDINGS]
        ]
        unlisted = len(inspection.findings) - _FINDINGS
        if unlisted > 0:
            rows.append(("...", f"{unlisted:,} more: --json lists them all"))
        console.print()
        print_table(
            Table((label("file", ""), label("what", "")), tuple(rows), "Findings"),
            console,
        )
    console.print()
    console.print(
        Text("Proposed configuration", style="bold"),
        Text("(--yaml prints it alone)", style="dim"),
    )
    for line in inspection.proposal.splitlines():
        is_comment = line.lstrip().startswith("#")
        indented = f"{'':{_INDENT}}{line}" if line else ""
        console.print(Text(indented, style="dim" if is_comment else ""), soft_wrap=True)


def _print_group(group: Group, console: Console) -> None:
    """Print a group of files of one kind: size, texts, columns and sample records."""
    console.print(Text(group.name, style="bold"), Text(NAMES[group.kind], style="cyan"))
    formats = ", ".join(
        f"{name} {numbers.count(count)}" for name, count in group.formats.items()
    )
    files = numbers.plural(group.files, "file")
    console.print(
        Text(
            f"{files} ({formats}), {numbers.size(group.bytes)}, {group.records_in_words}"
        )
    )
    if group.text is not None:
        column = f" in {group.text.column}" if group.has_columns else ""
        characters = numbers.count(round(group.text.mean_characters))
        ascii_share = numbers.percent(group.text.ascii_share, 1.0, 1)
        measured = numbers.plural(group.text.records, "record")
        console.print(
            Text(
                f"texts{column}: {characters} characters on average, {ascii_share} ASCII ({measured})"
            )
        )

    # Columns and sample records, as far as the terminal is wide.
    tables: list[Table] = []
    if group.features and group.has_columns:
        tables.append(_columns(group))
    limit = _VALUE_LINES * console.width if console.is_terminal else _PLAIN_CHARACTERS
    for index, record in enumerate(group.sample):
        values = [(name, _value(value, limit)) for name, value in record.items()]
        tables.append(facts(values, f"record {index + 1}"))
    for table in tables:
        console.print()
        print_table(table, console)


def _columns(group: Group) -> Table:
    """Return a table of the columns of some files: name, type, nulls, and the role
    that each was taken for.
    """
    mapping_by_column = {mapped.column: mapped for mapped in group.mapping.mapped}
    rows: list[tuple[str, ...]] = []
    for feature in group.features:
        mapped = mapping_by_column.get(feature.name)
        role = ""
        if mapped is not None:
            role = mapped.role
            # A column that is named like its role needs no explanation.
            if mapped.how != "exact" or mapped.role != feature.name:
                score = f" {mapped.score:.2f}" if mapped.how == "fuzzy" else ""
                role = f"{mapped.role} ({mapped.how}{score})"
        nulls = "possible" if feature.nullable else "no"
        rows.append((feature.name, feature.type, nulls, role))
    columns = (
        label("name", "column"),
        label("type"),
        label("nulls"),
        label("role", "taken for"),
    )
    return Table(columns, tuple(rows))


def _value(value: object, limit: int) -> str:
    """Return a value on one line of at most `limit` characters, with a sign in place
    of each line end.
    """
    text = value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False)
    line = printable(text.replace("\n", "\u21b5").replace("\t", " "))
    if len(line) <= limit:
        return line
    return f"{line[: limit - 3]}..."
