"""``tokenlake init``, ``inspect`` and ``schema``: what helps to write a configuration."""

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
from tokenlake.cli.console import AsJson, Data, StoreUrl, note, print_json
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import json_schema
from tokenlake.config.refusals import raise_problems, store_not_yet, store_problems
from tokenlake.errors import ConfigError, SourceError
from tokenlake.etl.introspection import introspector
from tokenlake.etl.introspection.inspection import NAMES, Group, Inspection
from tokenlake.etl.introspection.introspector import DatasetIntrospector
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
    require_outside_stores(path, "init")
    asks = sys.stdin is not None and sys.stdin.isatty() and not json  # pyright: ignore[reportUnnecessaryComparison]
    if not data and not asks:
        raise ConfigError("init needs --data: a file, directory, glob or URL; `tokenlake init --data data/`")
    data = data or (_asked("Where is your data (a file, directory, glob or URL)?"),)
    if asks:
        tokenizer = tokenizer or _asked("Which tokenizer (a Hub id, directory or file)?", "later")
    tokenizer = None if tokenizer in ("", "later") else tokenizer
    while asks and seq_length is None:
        answer = _asked("How many tokens has a packed row?", str(SEQ_LENGTH))
        if answer.isdecimal() and int(answer):
            seq_length = int(answer)
        else:
            note(f"{printable(answer)!r} is not a whole number above 0")
    seq_length, usual = seq_length or SEQ_LENGTH, default_store()
    store = store or (_asked("Where do the versions go?", usual) if asks else usual)
    found = DatasetIntrospector(data, type=type, tokenizer=tokenizer, seq_length=seq_length).inspect()
    text = _text(found, store)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _refuse_existing(path)
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another place") from error

    missing = None if tokenizer else "default_tokenizer"
    commands = [f"tokenlake {command} {shlex.quote(near(str(path)))}" for command in ("plan", "run")]
    if json:
        print_json({"path": str(path), "missing": missing, "next": commands})
        return 0
    first = f" First set {missing} in it." if missing else ""
    console = stdout()
    console.print(Text(f"{near(str(path))} is written; its comments say what was found.{first}"))
    console.print(Text("\nNext", style="bold"))
    for command in commands:
        console.print(Text(command), soft_wrap=True)
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


_INDENT = 2
_VALUE_LINES = 2  # of a sample's value on the terminal
_PLAIN_CHARACTERS = 300  # of one elsewhere
_FINDINGS = 20


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
    """Look into raw data without reading all of it, and propose a configuration for it.

    On a terminal this prints what was found; into a file or a pipe, only the proposal. So
    `tokenlake inspect data/ --tokenizer NAME > books.yaml` and then `tokenlake run books.yaml` build a dataset.

    At most 8 files are opened, and at most 4 MiB of each is read. The exit code is 1 if nothing can be proposed.

    Args:
        source: A file, directory, glob or URL, or the id of a dataset on the Hub with --type hf.
        type: The format of the files, if their names do not say it.
        subset: Subset of a dataset on the Hub, or of a folder whose README.md names subsets.
        split: Split of a dataset on the Hub, or of files whose names say splits. Default: train, else the first one.
        rows: How many sample records to show. Default: 3.
        tokenizer: Tokenizer for the proposal.
        storage_options: Options of the file system, with credentials by reference: {"key": {"env": "NAME"}}.
        yaml: Print only the proposed configuration. Default: yes, unless stdout is a terminal.
    """
    overrides = () if storage_options is None else (f"storage_options={storage_options}",)
    found = introspector.inspect(
        source, type=type, subset=subset, split=split, overrides=overrides, rows=rows, tokenizer=tokenizer
    )
    if json:
        print_json(found.to_json())
    elif (not sys.stdout.isatty()) if yaml is None else yaml:
        Data().write(found.proposal)
    else:
        _print_page(found, stdout())
        return 0
    # What somebody who redirects stdout must know.
    if fatal := sum(finding.fatal for finding in found.findings):
        note(f"note: {numbers.plural(fatal, 'file')} cannot be read; the comments say why")
    if not found.runnable:
        note("note: this release cannot build a dataset from these files; the comments say why")
    elif tokenizer is None:
        note("note: the proposal names no tokenizer; add one, or use --tokenizer NAME")
    return 0 if found.runnable or json else 1


def schema() -> int:
    """Print the JSON Schema of a pipeline configuration.

    An editor that knows the schema completes and checks a configuration while you type. Save the schema as
    tokenlake.runtime.schema.json and begin the YAML file with `# yaml-language-server:
    $schema=tokenlake.runtime.schema.json`.
    """
    print_json(json_schema())
    return 0


def _print_page(found: Inspection, console: Console) -> None:
    console.print(Text(" ".join(found.source), style="bold"))
    lines = [
        f"{numbers.plural(found.files, 'file')}, {numbers.size(found.bytes)}; sampled "
        f"{numbers.count(found.looked_into)}, read {numbers.size(found.bytes_read)}"
    ]
    if found.configs:
        lines.append(f"subsets: {', '.join(found.configs)}")
    if found.splits:
        told = (
            f"{s.name} ({numbers.plural(s.files, 'file')}, {numbers.size(s.bytes)})" for s in found.splits
        )
        lines.append(f"splits: {', '.join(told)}")
    console.print(Text("\n".join(lines)))
    for group in found.groups:
        console.print()
        _print_group(group, console)
    if found.findings:
        rows = [(each.file, each.what) for each in found.findings[:_FINDINGS]]
        if (more := len(found.findings) - _FINDINGS) > 0:
            rows.append(("...", f"{more:,} more: --json lists them all"))
        console.print()
        print_table(Table((label("file", ""), label("what", "")), tuple(rows), "Findings"), console)
    console.print()
    console.print(Text("Proposed configuration", style="bold"), Text("(--yaml prints it alone)", style="dim"))
    for line in found.proposal.splitlines():
        style = "dim" if line.lstrip().startswith("#") else ""
        console.print(Text(f"{'':{_INDENT}}{line}" if line else "", style=style), soft_wrap=True)


def _print_group(group: Group, console: Console) -> None:
    formats = ", ".join(f"{name} {numbers.count(count)}" for name, count in group.formats.items())
    console.print(Text(group.name, style="bold"), Text(NAMES[group.kind], style="cyan"))
    records = "unknown number of records"
    if group.rows is not None:
        about = f"about {numbers.short(group.rows)} records (estimated)"
        records = numbers.plural(group.rows, "record") if group.rows_exact else about
    size = f"{numbers.plural(group.files, 'file')} ({formats}), {numbers.size(group.bytes)}, {records}"
    console.print(Text(size))
    if (text := group.text) is not None:
        where = f" in {text.column}" if group.has_columns else ""
        characters = f"{numbers.count(round(text.mean_characters))} characters on average"
        share = f"{numbers.percent(text.ascii_share, 1.0, 1)} ASCII"
        measured = numbers.plural(text.records, "record")
        console.print(Text(f"texts{where}: {characters}, {share} ({measured})"))
    tables = [_columns(group)] if group.features and group.has_columns else []
    limit = _VALUE_LINES * console.width if console.is_terminal else _PLAIN_CHARACTERS
    for index, record in enumerate(group.sample):
        values = [(name, _value(value, limit)) for name, value in record.items()]
        tables.append(facts(values, f"record {index + 1}"))
    for table in tables:
        console.print()
        print_table(table, console)


def _columns(group: Group) -> Table:
    """Return a table of the columns of some files: name, type, nulls, and the role that each was taken for."""
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
    columns = (label("name", "column"), label("type"), label("nulls"), label("role", "taken for"))
    return Table(columns, tuple(rows))


def _value(value: object, limit: int) -> str:
    """A value on one line; line ends are shown as such."""
    written = value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False)
    flat = printable(written.replace("\n", "\u21b5").replace("\t", " "))
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."
