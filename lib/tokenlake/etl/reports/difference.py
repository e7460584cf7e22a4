"""What differs between two versions, as tables and in a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.etl.reports import Table, label, number
from tokenlake.runtime.store.diff import Count, Difference, FilePair

_LISTED: Final = 20  # inputs and shards of which a table names each
_SHOWN: Final = 24  # characters of a value: two of them and a key fit 80 columns
_HASH: Final = 12  # characters of a hash
_WORDS: Final = {
    "same_bytes": "same bytes",
    "same_tokens": "same tokens",
    "different": "different",
    "only_a": "only in {a}",
    "only_b": "only in {b}",
}
_PARTS: Final = {
    "produced_by": "releases",
    "others": "other files",
    "config": "configuration",
}


def sentence_of(found: Difference) -> str:
    """``code@v1 and code@v2 differ in: inputs, files, figures``."""
    if found.equal:
        return f"{found.a} and {found.b} are equal"
    return f"{found.a} and {found.b} differ in: {', '.join(_PARTS.get(part, part) for part in found.parts)}"


def headings(found: Difference) -> tuple[str, str]:
    """Return what the columns of the two versions are called: ``v1`` and ``v2``; A
    and B where that is not enough.
    """
    (left, _, one), (right, _, other) = found.a.partition("@"), found.b.partition("@")
    return (one, other) if left == right and one != other else ("A", "B")


def difference_tables(found: Difference, *, files: bool = False) -> Iterator[Table]:
    """Yield the tables of what differs.

    Args:
        files: list every shard that is not the same, too.
    """
    names = headings(found)
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
            rows = tuple(
                (
                    each.key,
                    "-" if each.there == "b" else _short(each.a),
                    "-" if each.there == "a" else _short(each.b),
                )
                for each in changes
            )
            yield Table(
                (label("key", ""), label("a", names[0]), label("b", names[1])),
                rows,
                title,
            )
    if found.inputs:
        yield _inputs_table(found, names)
    kinships = tuple(
        (_word(kinship, names), many, found.units.get(kinship, 0))
        for kinship, many in found.kinships.items()
    )
    yield Table(
        (label("kinship", ""), number("files", "shards"), number("units")),
        kinships,
        "Shards",
    )
    if files:
        yield _shards_table(found.files, names)
    yield _counts_table(found.totals, names, "Totals")
    if found.account:
        yield _counts_table(found.account, names, "Audit")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) >= 64 and all(letter in "0123456789abcdef" for letter in text):
        return text[:_HASH]
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _inputs_table(found: Difference, names: tuple[str, str]) -> Table:
    rows: list[tuple[Any, ...]] = [
        (
            pair.change,
            f"{pair.file.source}: {pair.file.path}",
            pair.a and pair.a.size,
            pair.b and pair.b.size,
        )
        for pair in found.inputs[:_LISTED]
    ]
    if (rest := len(found.inputs) - _LISTED) > 0:
        rows.append(("...", f"{numbers.count(rest)} more: --json", None, None))
    columns = (
        label("change", ""),
        label("file"),
        number("a", names[0], numbers.size),
        number("b", names[1], numbers.size),
    )
    return Table(
        columns, tuple(rows), f"Inputs ({numbers.count(found.inputs_same)} the same)"
    )


def _word(kinship: str, names: tuple[str, str]) -> str:
    return _WORDS[kinship].format(a=names[0], b=names[1])


def _shards_table(pairs: Iterable[FilePair], names: tuple[str, str]) -> Table:
    rows: list[tuple[str, str]] = []
    for pair in (pair for pair in pairs if not pair.same):
        told = _word(pair.kinship, names)
        if pair.kinship == "same_tokens":
            told += (
                f", other {', '.join(pair.columns)}"
                if pair.columns
                else ", written differently"
            )
        path = " -> ".join(
            dict.fromkeys(shard.path for shard in (pair.a, pair.b) if shard is not None)
        )
        rows.append((path, told))
    return Table(
        (label("path", ""), label("kinship", "")), tuple(rows), "Shards that differ"
    )


def _counts_table(counts: Iterable[Count], names: tuple[str, str], title: str) -> Table:
    rows = tuple((each.name, each.a, each.b, each.more or None) for each in counts)
    columns = (
        label("name", ""),
        number("a", names[0]),
        number("b", names[1]),
        number("more", "difference", lambda value: f"{value:+,}"),
    )
    return Table(columns, rows, title)
