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
from tokenlake.etl.introspection.file_group import source_name
from tokenlake.etl.introspection.inspection import NAMES, Group, Inspection
from tokenlake.etl.introspection.introspector import DatasetIntrospector
from tokenlake.etl.introspection.introspector import inspect as inspect_source
from tokenlake.etl.introspection.proposal import SEQ_LENGTH
from tokenlake.etl.reports import Table, facts, label
from tokenlake.etl.reports.terminal import near, print_table, stdout
from tokenlake.etl.tokenizers import has_form_of_hub_id, load_tokenizer
from tokenlake.runtime.store.outputs import require_outside_stores
from tokenlake.runtime.store.schemes import default_store

FILE: Final = "tokenlake.yaml"
"""Name of the configuration that `init` writes into a folder."""


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
        target: Folder in which tokenlake.yaml is written, or the file itself
            (books.yaml), whose stem is the name of the dataset. Default: this folder.
        data: A file, directory, glob or URL, or the id of a dataset on the Hub with
            --type hf. Repeatable.
        tokenizer: A Hub id, a directory or a tokenizer.json file.
        type: Format of the files, if their names do not show it.
        seq_length: Number of tokens per packed row. Default: 2048.
    """
    # A name with the ending of YAML is the file itself, unless such a folder exists.
    path = target / FILE
    name: str | None = None
    if target.suffix in (".yaml", ".yml") and not target.is_dir():
        path = target
        # The file's name is the dataset's, unless it is the usual one.
        if target.name != FILE:
            name = source_name(target.stem).lower()
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
        seq_length = SEQ_LENGTH
        if may_ask:
            seq_length = _ask_seq_length()
    if not store:
        store = default_store()
        if may_ask:
            store = _ask("Store for the versions?", store)

    # A tokenizer of this machine that is missing or cannot be used is an error now, not
    # in the first command after this one. A Hub id is not looked up, which needs the
    # network.
    if tokenizer is not None:
        is_path = Path(tokenizer).expanduser().exists()
        if is_path or not has_form_of_hub_id(tokenizer):
            load_tokenizer(tokenizer)
    introspector = DatasetIntrospector(
        data, type=type, tokenizer=tokenizer, seq_length=seq_length
    )
    with working("looking into the data"):
        inspection = introspector.inspect()
    _write_new(path, _configuration(inspection, store, name))

    # The next commands, which need a tokenizer.
    missing_option: str | None = None
    if tokenizer is None:
        missing_option = "default_tokenizer"
    shown_path = shlex.quote(near(str(path)))
    commands = [f"tokenlake plan {shown_path}", f"tokenlake run {shown_path}"]
    if json:
        print_json({"path": str(path), "missing": missing_option, "next": commands})
        return 0
    sentence = f"{near(str(path))} is written; its comments explain the findings."
    if missing_option is not None:
        sentence += f" First set {missing_option} in it."
    console = stdout()
    console.print(Text(sentence))
    console.print(Text("\nNext", style="bold"))
    for command in commands:
        console.print(Text(command), soft_wrap=True)
    return 0


def _write_new(path: Path, text: str) -> None:
    """Write a file that must not exist.

    It is created, and never replaced: another program may have written it while the
    data was inspected.

    Raises:
        ConfigError: The file exists, or cannot be written.
    """
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


def _refuse_existing(path: Path) -> None:
    """Raise ConfigError if a file or a link has the name of the configuration."""
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"{path} already exists and was not changed; name another file: tokenlake init FILE.yaml"
        )


def _ask(question: str, default: str = "") -> str:
    """Ask until there is an answer; an empty one is the default."""
    prompt = f"{question} "
    if default:
        prompt = f"{question} [{default}] "
    while True:
        answer = input(prompt).strip() or default
        if answer:
            return answer


def _ask_seq_length() -> int:
    """Ask for the tokens of a packed row until the answer is a whole number above 0."""
    while True:
        answer = _ask("Tokens per packed row?", str(SEQ_LENGTH))
        if answer.isdecimal() and int(answer) > 0:
            return int(answer)
        note(f"{printable(answer)!r} is not a whole number above 0")


def _configuration(inspection: Inspection, store: str, name: str | None) -> str:
    """Return the text of a configuration that loads: the proposal, a name and a store.

    Args:
        inspection: Result of the look at the data.
        store: Path or URL of the store.
        name: Name of the dataset; None or "" for the name of its first source.

    Raises:
        SourceError: The data has no files to build from.
        ConfigError: An option does not fit.
    """
    source = " ".join(inspection.source)
    if not inspection.runnable:
        raise SourceError(
            f"no dataset can be built from {source}; `tokenlake inspect {source}` prints the findings"
        )
    # The name and the store are added, because the proposal of `inspect` has none.
    if not name:
        name = yaml.safe_load(inspection.proposal)["datasets"][0]["name"].lower()
    options = {"name": name, "save": {"output_dir": store}}
    save = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
    comment = "# Versions of the dataset `name` are written to this store; other commands read TOKENLAKE_STORE."
    text = f"{inspection.proposal.rstrip()}\n\n{comment}\n{save}"
    # Loaded once, so that an error is found now and not at the first run.
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
        tokenizer: Tokenizer for the proposal. One of this machine also renders the first
            conversations, to name those that cannot be rendered.
        storage_options: Options of the file system, with credentials by reference:
            {"key": {"env": "NAME"}}.
        yaml: Print only the proposed configuration. Default: yes, unless stdout is a
            terminal.
    """
    overrides: tuple[str, ...] = ()
    if storage_options is not None:
        overrides = (f"storage_options={storage_options}",)
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
    # Redirected output is meant as a file, so that it is the proposal.
    prints_proposal = yaml
    if prints_proposal is None:
        prints_proposal = not sys.stdout.isatty()
    # The exit code of the full page is 0: it has stated the reason itself.
    if json:
        print_json(inspection.to_json())
    elif prints_proposal:
        Data().write(inspection.proposal)
    else:
        _print_page(inspection, stdout())
        return 0
    # Facts that a user who redirects stdout must know.
    unreadable = len([finding for finding in inspection.findings if finding.fatal])
    if unreadable:
        note(
            f"note: {numbers.plural(unreadable, 'file')} cannot be read; the comments state the reason"
        )
    if not inspection.runnable:
        note(
            "note: this release cannot build a dataset from these files; the comments state the reason"
        )
    elif tokenizer is None:
        note("note: the proposal names no tokenizer; add one, or use --tokenizer NAME")
    if inspection.runnable or json:
        return 0
    return 1


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
    # 1. The source as a whole.
    listed = (
        f"{numbers.plural(inspection.files, 'file')}, {numbers.size(inspection.bytes)}"
    )
    sampled = f"sampled {numbers.count(inspection.looked_into)}"
    lines = [f"{listed}; {sampled}, read {numbers.size(inspection.bytes_read)}"]
    if inspection.configs:
        lines.append(f"subsets: {', '.join(inspection.configs)}")
    if inspection.splits:
        splits: list[str] = []
        for split in inspection.splits:
            files = numbers.plural(split.files, "file")
            splits.append(f"{split.name} ({files}, {numbers.size(split.bytes)})")
        lines.append(f"splits: {', '.join(splits)}")
    console.print(Text("\n".join(lines)))
    # 2. Its groups, then everything that a build would find.
    for group in inspection.groups:
        console.print()
        _print_group(group, console)
    if inspection.findings:
        console.print()
        print_table(_findings_table(inspection), console)

    # 3. The proposal, indented, with dim comments.
    console.print()
    console.print(
        Text("Proposed configuration", style="bold"),
        Text("(--yaml prints it alone)", style="dim"),
    )
    for line in inspection.proposal.splitlines():
        style = ""
        if line.lstrip().startswith("#"):
            style = "dim"
        indented = ""
        if line:
            indented = f"{'':{_INDENT}}{line}"
        console.print(Text(indented, style=style), soft_wrap=True)


def _findings_table(inspection: Inspection) -> Table:
    """Return the first findings, and the number of the others."""
    rows: list[tuple[str, str]] = []
    for finding in inspection.findings[:_FINDINGS]:
        rows.append((finding.file, finding.what))
    unlisted = len(inspection.findings) - _FINDINGS
    if unlisted > 0:
        rows.append(("...", f"{unlisted:,} more: --json lists them all"))
    columns = (label("file", ""), label("what", ""))
    return Table(columns, tuple(rows), "Findings")


def _print_group(group: Group, console: Console) -> None:
    """Print a group of files of one kind: size, texts, columns and sample records."""
    console.print(Text(group.name, style="bold"), Text(NAMES[group.kind], style="cyan"))
    formats: list[str] = []
    for form, form_files in group.formats.items():
        formats.append(f"{form} {numbers.count(form_files)}")
    files = f"{numbers.plural(group.files, 'file')} ({', '.join(formats)})"
    stored = numbers.size(group.bytes)
    console.print(Text(f"{files}, {stored} stored, {group.records_in_words}"))
    if group.text is not None:
        # Plain text has one column, whose name nobody chose.
        subject = "texts"
        if group.has_columns:
            subject = f"texts in {group.text.column}"
        characters = numbers.count(round(group.text.mean_characters))
        ascii_share = numbers.percent(group.text.ascii_share, 1.0, 1)
        measured = numbers.plural(group.text.records, "record")
        console.print(
            Text(
                f"{subject}: {characters} characters on average, {ascii_share} ASCII ({measured})"
            )
        )

    # Columns and sample records, as far as the terminal is wide.
    tables: list[Table] = []
    if group.features and group.has_columns:
        tables.append(_columns(group))
    limit = _PLAIN_CHARACTERS
    if console.is_terminal:
        limit = _VALUE_LINES * console.width
    for index, record in enumerate(group.sample):
        values = [(name, _value(value, limit)) for name, value in record.items()]
        tables.append(facts(values, f"record {index + 1}"))
    for table in tables:
        console.print()
        print_table(table, console)


def _columns(group: Group) -> Table:
    """Return a table of columns: name, type, nulls, and role."""
    mapping_by_column = {mapped.column: mapped for mapped in group.mapping.mapped}
    rows: list[tuple[str, ...]] = []
    for feature in group.features:
        mapped_column = mapping_by_column.get(feature.name)
        role = ""
        if mapped_column is not None:
            role = mapped_column.role
            # A column that is named like its role needs no explanation.
            is_named_alike = mapped_column.role == feature.name
            if mapped_column.how != "exact" or not is_named_alike:
                reason = mapped_column.how
                if mapped_column.how == "fuzzy":
                    reason += f" {mapped_column.score:.2f}"
                role = f"{mapped_column.role} ({reason})"
        nulls = "no"
        if feature.nullable:
            nulls = "possible"
        rows.append((feature.name, feature.type, nulls, role))
    columns = (
        label("name", "column"),
        label("type"),
        label("nulls"),
        label("role", "taken for"),
    )
    return Table(columns, tuple(rows))


def _value(value: object, limit: int) -> str:
    """Return a value on one line of at most `limit` characters.

    A sign is in the place of each line end.
    """
    if isinstance(value, str):
        text = value
    else:
        text = jsonlib.dumps(value, ensure_ascii=False)
    line = printable(text.replace("\n", "\u21b5").replace("\t", " "))
    if len(line) <= limit:
        return line
    return f"{line[: limit - 3]}..."
