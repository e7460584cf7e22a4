"""``tokenlake diff``: what differs between two versions."""

from __future__ import annotations

import json as _json
from collections.abc import Iterable, Iterator
from typing import Any

from tokenlake.cli.console import AsJson, Name, StoreUrl, emit, note, print_tables
from tokenlake.config.stores import default_store
from tokenlake.report import numbers
from tokenlake.report.table import Table, label, number
from tokenlake.report.terminal import stdout
from tokenlake.store.diff import Change, Count, Difference, FilePair
from tokenlake.store.diff import diff as compare

_LISTED = 20  # inputs and shards of which a table names each
_SHOWN = 24  # characters of a value: two of them and a key fit 80 columns
_HASH = 12  # characters of a hash
_WORDS = {
    "same_bytes": "same bytes",
    "same_tokens": "same tokens",
    "different": "different",
    "only_a": "only in {a}",
    "only_b": "only in {b}",
}
_PARTS = {"produced_by": "releases", "others": "other files", "config": "configuration"}


def diff(
    a: Name,
    b: str,
    /,
    *,
    files: bool = False,
    exit_code: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Show what differs between two versions: configuration, tokenizer, inputs, shards, figures, weights.

    Only manifests are read. Shards are compared by their hashes: they have the same bytes, or the same tokens in other
    bytes. The card, the configuration file and the ledger hold names and release numbers and are not compared.

    The exit code is 0 whether the versions differ or not; with --exit-code, as in git, it is 1 if they differ.

    Args:
        b: The other version.
        files: List every shard that differs.
        exit_code: Exit with 1 if the versions differ.
    """
    found = compare(a, b, store=store or default_store())
    emit(found.to_json(), json, lambda: _print(found, files))
    return 1 if exit_code and not found.equal else 0


def _print(found: Difference, files: bool) -> None:
    names = _headings(found)
    console = stdout()
    if found.equal:
        console.print(f"{found.a} and {found.b} are equal")
    else:
        parts = ", ".join(_PARTS.get(part, part) for part in found.parts)
        console.print(f"{found.a} and {found.b} differ in: {parts}")
    if names == ("A", "B"):
        console.print(f"A is {found.a}, B is {found.b}")
    console.print()
    print_tables(_tables(found, names, files))
    unlike = sum(not pair.same for pair in found.files)
    if unlike and not files:
        note(f"\n{numbers.plural(unlike, 'shard')} not the same: --files lists them")


def _headings(found: Difference) -> tuple[str, str]:
    (left, _, one), (right, _, other) = found.a.partition("@"), found.b.partition("@")
    return (one, other) if left == right and one != other else ("A", "B")


def _tables(found: Difference, names: tuple[str, str], files: bool) -> Iterator[Table]:
    for title, changes in (
        ("Identity", found.identity),
        ("Configuration", found.config),
        ("Tokenizer", found.tokenizer),
        ("Mixture", found.mixture),
        ("Parents", found.parents),
        ("Other files", found.others),
        ("Releases", found.produced_by),
    ):
        if changes:
            yield _changes_table(changes, names, title)
    if found.inputs:
        yield _inputs_table(found, names)
    yield _files_table(found, names)
    if files:
        yield _shards_table(found.files, names)
    yield _counts_table(found.totals, names, "Totals")
    if found.account:
        yield _counts_table(found.account, names, "Account")


def _changes_table(changes: Iterable[Change], names: tuple[str, str], title: str) -> Table:
    rows = [
        {
            "key": change.key,
            "a": "-" if change.there == "b" else _short(change.a),
            "b": "-" if change.there == "a" else _short(change.b),
        }
        for change in changes
    ]
    return Table.of((label("key", ""), label("a", names[0]), label("b", names[1])), rows, title)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else _json.dumps(value, ensure_ascii=False)
    if len(text) >= 64 and all(letter in "0123456789abcdef" for letter in text):
        return text[:_HASH]
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _inputs_table(found: Difference, names: tuple[str, str]) -> Table:
    rows: list[dict[str, Any]] = [
        {
            "change": pair.change,
            "file": f"{pair.file.source}: {pair.file.path}",
            "a": pair.a and pair.a.size,
            "b": pair.b and pair.b.size,
        }
        for pair in found.inputs[:_LISTED]
    ]
    if rest := len(found.inputs) - _LISTED:
        rows += [{"change": "...", "file": f"{numbers.count(rest)} more: --json"}] if rest > 0 else []
    columns = (
        label("change", ""),
        label("file"),
        number("a", names[0], numbers.size),
        number("b", names[1], numbers.size),
    )
    return Table.of(columns, rows, f"Inputs ({numbers.count(found.inputs_same)} the same)")


def _files_table(found: Difference, names: tuple[str, str]) -> Table:
    rows = [
        {"kinship": _word(kinship, names), "files": files, "units": found.units.get(kinship, 0)}
        for kinship, files in found.kinships.items()
    ]
    return Table.of((label("kinship", ""), number("files", "shards"), number("units")), rows, "Shards")


def _word(kinship: str, names: tuple[str, str]) -> str:
    return _WORDS[kinship].format(a=names[0], b=names[1])


def _shards_table(pairs: Iterable[FilePair], names: tuple[str, str]) -> Table:
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        if pair.same:
            continue
        told = _word(pair.kinship, names)
        if pair.kinship == "same_tokens":
            told += f", other {', '.join(pair.columns)}" if pair.columns else ", written otherwise"
        path = " -> ".join(dict.fromkeys(shard.path for shard in (pair.a, pair.b) if shard is not None))
        rows.append({"path": path, "kinship": told})
    return Table.of((label("path", ""), label("kinship", "")), rows, "Shards that are not the same")


def _counts_table(counts: Iterable[Count], names: tuple[str, str], title: str) -> Table:
    rows = [{"name": each.name, "a": each.a, "b": each.b, "more": each.more or None} for each in counts]
    columns = (
        label("name", ""),
        number("a", names[0]),
        number("b", names[1]),
        number("more", "difference", lambda value: f"{value:+,}"),
    )
    return Table.of(columns, rows, title)
