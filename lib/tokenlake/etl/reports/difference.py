"""The difference of two versions, as tables and as a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from tokenlake.base import numbers
from tokenlake.etl.reports import Table, label, number
from tokenlake.runtime.store.diff import Change, Count, Difference, FilePair

_LISTED_INPUTS: Final = 20  # files in the table of inputs; `--json` lists all
_VALUE_WIDTH: Final = 24  # characters of a value: two of them and a key fit 80 columns
_HASH_DIGITS: Final = 12  # of a hash, which tell the files of two versions apart
_LEAST_HASH: Final = 64  # digits of SHA-256; a shorter value is shown as any other
_KINSHIP_WORDS: Final = {
    "same_bytes": "same bytes",
    "same_tokens": "same tokens",
    "different": "different",
    "only_a": "only in {a}",
    "only_b": "only in {b}",
}
_PART_NAMES: Final = {
    "produced_by": "releases",
    "others": "other files",
    "config": "configuration",
}


def sentence_of(found: Difference) -> str:
    """Return the differing parts: ``code@v1 and code@v2 differ in: inputs, files``."""
    if found.equal:
        return f"{found.a} and {found.b} are equal"
    parts = [_PART_NAMES.get(part, part) for part in found.parts]
    return f"{found.a} and {found.b} differ in: {', '.join(parts)}"


def headings(found: Difference) -> tuple[str, str]:
    """Return the headings of the two versions.

    They are ``v1`` and ``v2`` for two versions of a dataset, and otherwise A and B:
    full names would make the columns too wide.
    """
    left_dataset, _, left_version = found.a.partition("@")
    right_dataset, _, right_version = found.b.partition("@")
    if left_dataset == right_dataset and left_version != right_version:
        return left_version, right_version
    return "A", "B"


def difference_tables(found: Difference, *, files: bool = False) -> Iterator[Table]:
    """Yield the tables of all differences.

    Args:
        found: The difference.
        files: True to add a table of all shards that are not the same. Default: False.
    """
    names = headings(found)
    changes_by_title = {
        "Identity": found.identity,
        "Configuration": found.config,
        "Tokenizer": found.tokenizer,
        "Mixture": found.mixture,
        "Parents": found.parents,
        "Other files": found.others,
        "Releases": found.produced_by,
    }
    for title, changes in changes_by_title.items():
        if changes:
            yield _changes_table(changes, names, title)
    if found.inputs:
        yield _inputs_table(found, names)

    # Shards are compared by bytes and by tokens; a count of each outcome is always
    # shown, so that "all the same" is visible, too.
    kinship_rows: list[tuple[Any, ...]] = []
    for kinship, shards in found.kinships.items():
        words = _kinship_words(kinship, names)
        kinship_rows.append((words, shards, found.units.get(kinship, 0)))
    columns = (label("kinship", ""), number("files", "shards"), number("units"))
    yield Table(columns, tuple(kinship_rows), "Shards")
    if files:
        yield _shards_table(found.files, names)
    yield _counts_table(found.totals, names, "Totals")
    if found.account:
        yield _counts_table(found.account, names, "Audit")


def _changes_table(
    changes: Iterable[Change], names: tuple[str, str], title: str
) -> Table:
    """Return changed values side by side; a value that one version lacks is a dash."""
    rows: list[tuple[str, str, str]] = []
    for change in changes:
        # A section that one version lacks is too long for a cell: its values have a
        # row each.
        if not change.is_in_b:
            for key, value in _leaves(change.key, change.a):
                rows.append((key, _short(value), "-"))
        elif not change.is_in_a:
            for key, value in _leaves(change.key, change.b):
                rows.append((key, "-", _short(value)))
        else:
            rows.append((change.key, _short(change.a), _short(change.b)))
    columns = (label("key", ""), label("a", names[0]), label("b", names[1]))
    return Table(columns, tuple(rows), title)


def _leaves(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the values of an object with their dotted keys, or the value itself.

    An empty object is a value.
    """
    if not isinstance(value, Mapping) or not value:
        yield key, value
        return
    members = cast("Mapping[str, object]", value)
    for name, member in members.items():
        yield from _leaves(f"{key}.{name}", member)


def _short(value: object) -> str:
    """Return a value in at most :data:`_VALUE_WIDTH` characters."""
    if isinstance(value, str):
        written = value
    else:
        written = json.dumps(value, ensure_ascii=False)
    # The beginning of a hash identifies it. No dots follow: nobody needs the rest.
    is_hexadecimal = all(digit in "0123456789abcdef" for digit in written)
    if len(written) >= _LEAST_HASH and is_hexadecimal:
        return written[:_HASH_DIGITS]
    if len(written) <= _VALUE_WIDTH:
        return written
    return f"{written[: _VALUE_WIDTH - 3]}..."


def _inputs_table(found: Difference, names: tuple[str, str]) -> Table:
    """Return the first input files that differ, and the number of the others."""
    rows: list[tuple[Any, ...]] = []
    for pair in found.inputs[:_LISTED_INPUTS]:
        left_size = None
        right_size = None
        if pair.a is not None:
            left_size = pair.a.size
        if pair.b is not None:
            right_size = pair.b.size
        file_name = f"{pair.file.source}: {pair.file.path}"
        rows.append((pair.change, file_name, left_size, right_size))
    unlisted = len(found.inputs) - _LISTED_INPUTS
    if unlisted > 0:
        rows.append(("...", f"{numbers.count(unlisted)} more: --json", None, None))
    columns = (
        label("change", ""),
        label("file"),
        number("a", names[0], numbers.size),
        number("b", names[1], numbers.size),
    )
    title = f"Inputs ({numbers.count(found.inputs_same)} the same)"
    return Table(columns, tuple(rows), title)


def _kinship_words(kinship: str, names: tuple[str, str]) -> str:
    """Return a kinship of shards in words: ``only in v2``."""
    return _KINSHIP_WORDS[kinship].format(a=names[0], b=names[1])


def _shards_table(pairs: Iterable[FilePair], names: tuple[str, str]) -> Table:
    """Return all pairs of shards with different bytes."""
    rows: list[tuple[str, str]] = []
    for pair in pairs:
        if pair.same:
            continue
        words = _kinship_words(pair.kinship, names)
        # Equal tokens in different bytes: another column changed, or the writer did.
        if pair.kinship == "same_tokens" and pair.columns:
            words += f", other {', '.join(pair.columns)}"
        elif pair.kinship == "same_tokens":
            words += ", written differently"
        # Shards are paired by content: the two paths of a pair can differ.
        paths = [shard.path for shard in (pair.a, pair.b) if shard is not None]
        rows.append((" -> ".join(dict.fromkeys(paths)), words))
    columns = (label("path", ""), label("kinship", ""))
    return Table(columns, tuple(rows), "Shards that differ")


def _counts_table(counts: Iterable[Count], names: tuple[str, str], title: str) -> Table:
    """Return counts side by side, with their differences; an equal count has none."""
    rows: list[tuple[Any, ...]] = []
    for entry in counts:
        rows.append((entry.name, entry.a, entry.b, entry.more or None))
    columns = (
        label("name", ""),
        number("a", names[0]),
        number("b", names[1]),
        number("more", "difference", lambda value: f"{value:+,}"),
    )
    return Table(columns, tuple(rows), title)
