"""Large manifests: what is checked as a whole is what would be checked one by one, and costs little."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.test_manifest import inputs, shards, small
from tokenlake.errors import IntegrityError
from tokenlake.fingerprint import canonical_json, canonical_text, file_id
from tokenlake.store.canonical import parse_canonical
from tokenlake.store.entries import FileEntry, ShardEntry
from tokenlake.store.inputs import InputFileEntry
from tokenlake.store.layout import shard_path
from tokenlake.store.manifest import Manifest
from tokenlake.store.sealed import Fields, seal

#: Values that are nearly right somewhere, and right nowhere.
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 1.0, 1 << 62, -(1 << 63), 1 << 70, "", "x", "train", "a/b", [], {}),
    *([0], [0, 2], [0, True], [0, 2.0], [0, 2, 1], [1, 2], [[0]], ["0"], [0, 3], {"bytes": 1}, "é", "a" * 64),
    *(
        "a" * 63,
        "A" * 64,
        "0" * 32,
        "0" * 64,
        "0" * 33,
        {"x": "0" * 32},
        {"x": "0" * 31},
        {"x": 1},
        {"": "0" * 96},
    ),
    *("data/train-00000-00.parquet", "data/train-00001-00.parquet", 10_000_000, "a\n", "x" * 65),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in places(inner, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], how: str, odd: Any) -> Any:
    """Return ``value`` with something replaced, removed or added at ``path``."""
    if not path:
        return odd
    value = copy.deepcopy(value)
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    if how == "remove":
        del holder[path[-1]]
    elif how == "add" and isinstance(holder, dict):
        holder[f"{path[-1]}+"] = odd
    else:
        holder[path[-1]] = odd
    return value


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except IntegrityError as error:
        return str(error), error.details


TABLES: list[tuple[Any, Any]] = [
    (ShardEntry, lambda source: tuple(map(ShardEntry.read, source.children("x")))),
    (InputFileEntry, lambda source: tuple(map(InputFileEntry.read, source.children("x")))),
    (FileEntry, lambda source: {k: FileEntry.read(v) for k, v in source.named_children("x").items()}),
]


@pytest.mark.parametrize(("entry", "one_by_one"), TABLES, ids=["shards", "inputs", "files"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_table_is_read_as_its_entries_are(entry: Any, one_by_one: Any, data: st.DataObject) -> None:
    table = st.lists(
        {ShardEntry: shards(), InputFileEntry: inputs()}.get(
            entry, st.builds(FileEntry, bytes=st.integers(0, 9), sha256=st.just("a" * 64))
        ),
        max_size=3,
    )
    entries = [each.to_json() for each in data.draw(table)]
    value: Any = dict(enumerate_names(entries)) if entry is FileEntry else entries
    good = Fields({"x": value}, "m.json")
    assert entry.read_all(good, "x") == one_by_one(good)
    path = data.draw(st.sampled_from(places(value)))
    how, odd = data.draw(st.sampled_from(["set", "remove", "add"])), data.draw(st.sampled_from(ODD))
    bad = {"x": changed(value, path, how, odd)}
    whole, single = (
        outcome(lambda read=read: read(Fields(bad, "m.json")))
        for read in (lambda f: entry.read_all(f, "x"), one_by_one)
    )
    assert whole == single


def enumerate_names(entries: list[Any]) -> list[tuple[str, Any]]:
    return [(f"ledger/{index}", entry) for index, entry in enumerate(entries)]


@pytest.mark.parametrize("odd", [json.dumps(odd) for odd in ODD])
def test_no_odd_value_slips_through_anywhere(odd: str) -> None:
    good = json.loads(small().to_bytes())
    for path in places(good):
        bad = changed(good, path, "set", json.loads(odd))
        if (
            not isinstance(bad, dict)
            or canonical_json(bad) == canonical_json(good)
            or path[:1] in (("sha256",), ("tokenizer",), ("config",))
        ):
            continue
        found = outcome(lambda bad=bad: Manifest.from_bytes(seal(bad), "m.json"))
        if isinstance(found, Manifest):  # a value that is as good as the other
            assert canonical_json(json.loads(found.to_bytes())) == seal(bad), path


# Canonical text

PARTS = st.sampled_from(
    [
        *'{}[]:,"',
        '"row_groups":[',
        '"row_groups":',
        '\\"row_groups":[',
        "0",
        "1",
        "00",
        "0,128",
        "]",
        "\\",
        " ",
        "a",
        "-1",
        "1.0",
        "true",
    ]
)
LISTS = st.lists(st.integers(-1, 300), max_size=3)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "row_groups", '"row_groups":[1]', '":[1]', "\\"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["row_groups", 'x"row_groups', "x\\", "b", "z"]), inner | LISTS, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=80)
@given(VALUES)
def test_canonical_text_is_read_back(value: Any) -> None:
    found = parse_canonical(canonical_text(value))
    assert canonical_text(found) == canonical_text(value)


@settings(max_examples=80)
@given(VALUES, st.data())
def test_only_canonical_text_is_accepted(value: Any, data: st.DataObject) -> None:
    text = canonical_text(value)
    at, cut, more = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 3)), data.draw(PARTS)
    text = text[:at] + more + text[at + cut :]
    try:
        found = json.loads(text)
        canonical = canonical_text(found) == text
    except ValueError:
        canonical = False
    if canonical:
        assert canonical_text(parse_canonical(text)) == text
    else:
        with pytest.raises(ValueError, match=r"."):
            parse_canonical(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"row_groups":[0,00]}',
        '{"row_groups":[0,1,]}',
        '{"row_groups":[0, 1]}',
        '{"row_groups":[1e1]}',
        '{"row_groups":[-0]}',
        '{"row_groups":[0],"row_groups":[0]}',
        '{"row_groups":[0],"row_groups":0}',
        '{"row_groups":[0',
        '{"row_groups":[0]]}',
        '["row_groups":[0]]',
        '{"z":1,"row_groups":[0]}',
        '{"row_groups":[NaN]}',
        '[{"row_groups":[0]},NaN]',
    ],
)
def test_lists_that_are_set_aside_are_canonical_too(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_canonical(text)


# Size


def large(count: int) -> Manifest:
    """A manifest of ``count`` shards with 50 row groups each, inputs and ledger records."""
    one = small()
    files = tuple(
        replace(
            one.files[0],
            path=shard_path("train", unit, 0),
            unit=unit,
            rows=6400 - unit % 3,
            row_groups=tuple(range(0, 6400 - unit % 3, 128)),
        )
        for unit in range(count)
    )
    paths = [f"{index}.jsonl" for index in range(count)]
    entries = tuple(replace(one.inputs[0], path=path, file_id=file_id("c", path)) for path in paths)
    ledger = {f"ledger/{unit:05d}.json": one.other_files["README.md"] for unit in range(count)}
    return replace(one, files=files, inputs=entries, other_files=ledger)


def test_equal_row_groups_are_one_object() -> None:
    again = Manifest.from_bytes(large(100).to_bytes())
    assert again == large(100)
    assert len({id(shard.row_groups) for shard in again.files}) == 1
    assert {type(start) for shard in again.files for start in shard.row_groups} == {int}


def calls(read: Callable[[], Any]) -> int:
    """Count the calls of functions, ours and built-in ones."""
    found = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        read()
    finally:
        sys.setprofile(None)
    return found


def test_opening_costs_a_few_calls_for_each_file() -> None:
    few, many = (large(count).to_bytes() for count in (100, 300))
    more = calls(lambda: Manifest.from_bytes(many)) - calls(lambda: Manifest.from_bytes(few))
    assert more / 200 < 60  # of a shard, an input and a ledger record together; it was 4,000


def test_the_seal_is_not_computed_again() -> None:
    manifest = large(50)
    again = Manifest.from_bytes(manifest.to_bytes())
    assert calls(lambda: again.sha256) < 10
    assert again.sha256 == manifest.sha256
    assert replace(again, version=2).sha256 == replace(manifest, version=2).sha256 != again.sha256
