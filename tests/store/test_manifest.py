"""Manifests and ledger records: exact round trips, and nothing wrong is ever read."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.support import a_manifest, a_record, a_shard
from tokenlake import Manifest
from tokenlake.base import canonical_json, file_id
from tokenlake.errors import AccountError, IntegrityError
from tokenlake.runtime.store import (
    MIXED,
    Account,
    FileEntry,
    InputEntry,
    InputFileEntry,
    Parent,
    QuarantineEntry,
    ShardEntry,
    UnitRecord,
    seal,
    shard_path,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COUNT = st.integers(0, 1 << 50)
HEX64 = st.integers(0, (1 << 256) - 1).map(lambda value: f"{value:064x}")
HEX32 = st.integers(0, (1 << 128) - 1).map(lambda value: f"{value:032x}")
JSON_OBJECT: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    TEXT,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | TEXT,
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2)
        ),
        max_leaves=4,
    ),
    max_size=3,
)
PARENTS = st.builds(Parent, dataset=st.just("a"), version=st.just(1), sha256=HEX64)
ACCOUNTS = st.builds(
    Account,
    rows_read=COUNT,
    filtered=st.dictionaries(TEXT, COUNT, max_size=2),
    tokens=COUNT,
)


@st.composite
def shards(draw: st.DrawFn, unit: int | None = None) -> ShardEntry:
    split, part = (
        draw(st.sampled_from(["train", "validation"])),
        draw(st.integers(0, 200)),
    )
    unit = draw(st.integers(0, 99_999)) if unit is None else unit
    sizes = draw(st.lists(st.integers(1, 1000), max_size=4))
    starts = tuple(sum(sizes[:index]) for index in range(len(sizes)))
    return ShardEntry(
        path=shard_path(split, unit, part),
        split=split,
        unit=unit,
        part=part,
        bytes=draw(st.integers(1, 1 << 40)),
        sha256=draw(HEX64),
        rows=sum(sizes),
        tokens=draw(COUNT),
        documents=draw(COUNT),
        row_groups=starts,
        logical={
            "input_ids": draw(HEX32),
            "segment_lengths": draw(HEX32) + draw(HEX32),
        },
    )


@st.composite
def inputs(draw: st.DrawFn, source: str | None = None) -> InputFileEntry:
    source, path = draw(TEXT) if source is None else source, draw(TEXT)
    return InputFileEntry(
        source=source,
        path=path,
        size=draw(COUNT),
        token=draw(TEXT),
        file_id=file_id(source, path),
    )


def ranged(entry: InputFileEntry, start: int, more: int) -> InputEntry:
    return InputEntry(**asdict(entry), start=start, stop=start + more)


def once(key: str) -> Any:
    return lambda entry: getattr(entry, key)


@st.composite
def records(draw: st.DrawFn) -> UnitRecord:
    unit, source = (
        draw(st.integers(0, 99_999)),
        draw(TEXT.filter(lambda name: name != MIXED)),
    )
    bad = QuarantineEntry(
        path=f"quarantine/{unit:05d}.parquet", bytes=9, sha256=draw(HEX64), rows=1
    )
    return UnitRecord(
        unit=unit,
        fingerprint=draw(HEX64),
        source=source,
        inputs=tuple(
            draw(st.lists(st.builds(ranged, inputs(source), COUNT, COUNT), max_size=3))
        ),
        parts=tuple(draw(st.lists(shards(unit), max_size=3, unique_by=once("path")))),
        account=draw(ACCOUNTS),
        quarantine=draw(st.sampled_from([None, bad])),
        engine=draw(TEXT),
        produced_by=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    packed = draw(st.booleans())
    return Manifest(
        kind="packed" if packed else "tokens",
        dataset=draw(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,10}", fullmatch=True)),
        version=draw(st.integers(1, 999)),
        fingerprint=draw(HEX64),
        seq_length=draw(st.integers(1, 8192)) if packed else None,
        config=draw(JSON_OBJECT),
        tokenizer=draw(st.dictionaries(TEXT, JSON_OBJECT, max_size=2)),
        files=tuple(draw(st.lists(shards(), max_size=3, unique_by=once("path")))),
        other_files={"README.md": FileEntry(bytes=draw(COUNT), sha256=draw(HEX64))},
        inputs=tuple(draw(st.lists(inputs(), max_size=3, unique_by=once("file_id")))),
        accounts=draw(st.dictionaries(TEXT, ACCOUNTS, max_size=2)),
        produced_by=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        parents=tuple(draw(st.lists(PARENTS, max_size=1))),
    )


def small() -> Manifest:
    """A manifest whose account closes."""
    shard = a_shard(rows=3, tokens=20, documents=2, row_groups=(0, 2))
    account = Account(
        rows_read=2,
        kept=2,
        documents=2,
        tokens=18,
        content_packed=18,
        eos=2,
        pad=4,
        sequences=3,
        slots=24,
    )
    entry = InputFileEntry(
        source="c", path="p", size=3, token="t", file_id=file_id("c", "p")
    )
    return a_manifest(
        kind="packed",
        dataset="a",
        fingerprint="f" * 64,
        seq_length=8,
        config={"x": 1.5},
        files=(shard,),
        other_files={"README.md": FileEntry(bytes=1, sha256="b" * 64)},
        inputs=(entry,),
        accounts={"c": account},
        produced_by={"tokenlake": "0.1.0"},
    )


def resealed(data: bytes, change: Any) -> bytes:
    """Edit a sealed document as somebody would who knows how to seal."""
    value = json.loads(data)
    change(value)
    return seal(value)


# Round trips


@settings(max_examples=30)
@given(manifests())
def test_manifests_round_trip_exactly(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    again = Manifest.from_bytes(data)
    assert again == manifest
    assert again.to_bytes() == data == canonical_json(json.loads(data))
    assert json.loads(data)["sha256"] == manifest.sha256


@settings(max_examples=30)
@given(records())
def test_ledger_records_round_trip_exactly(record: UnitRecord) -> None:
    assert UnitRecord.from_bytes(record.to_bytes()) == record
    assert (
        json.loads(json.dumps(record.to_json())).items()
        <= json.loads(record.to_bytes()).items()
    )


def test_the_manifest_is_pinned() -> None:
    assert (
        small().sha256
        == "a465c0207f415691eaa2399a88952d5f97d8ff26b0487895b162b46e63674174"
    )


def test_derived_values() -> None:
    manifest = small()
    other = replace(
        manifest.files[0],
        path="data/validation-00000-00.parquet",
        split="validation",
        rows=5,
    )
    manifest = replace(manifest, files=(*manifest.files, other))
    assert asdict(manifest.totals) == {
        "files": 2,
        "bytes": 200,
        "rows": 8,
        "tokens": 40,
        "documents": 4,
    }
    assert {name: totals.rows for name, totals in manifest.splits.items()} == {
        "train": 3,
        "validation": 5,
    }
    assert manifest.account == manifest.accounts["c"]
    second = replace(manifest.inputs[0], path="q", file_id=file_id("c", "q"))
    one, other = (
        replace(manifest, inputs=(manifest.inputs[0], second)),
        replace(manifest, inputs=(second, manifest.inputs[0])),
    )
    assert one.lineage == other.lineage != manifest.lineage


# Damage


@pytest.mark.parametrize("what", ["manifest", "record"])
def test_any_changed_cut_or_added_byte_is_found(what: str) -> None:
    manifest = small()
    ranges = (ranged(manifest.inputs[0], 0, 3),)
    record = a_record(inputs=ranges, parts=manifest.files, account=manifest.account)
    document = manifest if what == "manifest" else record
    data, read = document.to_bytes(), type(document).from_bytes
    dice = random.Random(3)
    for _ in range(400):
        bad = bytearray(data)
        bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
        with pytest.raises(IntegrityError):
            read(bytes(bad))
    for cut in range(0, len(data), 13):
        with pytest.raises(IntegrityError):
            read(data[:cut])
    spaced = data.replace(b":", b": ", 1)
    for more in (
        data + b"\n",
        b" " + data,
        data + data,
        spaced,
        b"\xef\xbb\xbf" + data,
    ):
        with pytest.raises(IntegrityError):
            read(more)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"format_version":1}',
        b'{"a":NaN}',
        b'{"a":1,"a":1}',
        b"\xff",
        b"[" * 2_000_000,
        b'{"a":' * 500_000,
        b"9" * 1_000_000,
        b'{"format_version":' + b"9" * 5000 + b"}",
        b'{"format_version":1,"sha256":"\\ud800"}',
        b'{"format_version":1,"x":"\\ud800","sha256":"' + b"0" * 64 + b'"}',
    ],
)
def test_what_is_no_document_is_an_integrity_error(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"some/manifest\.json"):
        Manifest.from_bytes(data, "some/manifest.json")


def put(*path: Any, to: Any) -> Any:
    """Return a change that sets the value at ``path``."""

    def change(value: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    return change


CHANGES: list[tuple[Any, str]] = [
    (put("format_version", to=2), "format_version"),
    (put("kind", to="ragged"), "kind"),
    (put("kind", to="tokens"), "seq_length"),
    (put("dataset", to="../x"), "dataset"),
    (put("version", to=0), "version"),
    (put("version", to="1"), "version"),
    (put("fingerprint", to="F" * 64), "fingerprint"),
    (put("seq_length", to=None), "seq_length"),
    (put("seq_length", to=0), "seq_length"),
    (put("config", to=[]), "config"),
    (put("files", to={}), "files"),
    (put("files", 0, to=None), "files[0]"),
    *(
        (put("files", 0, "path", to=path), "files[0].path")
        for path in ("", "../../etc/passwd", "/etc/passwd")
    ),
    *(
        (
            put("files", 0, "path", to=path.format("train-00000-00.parquet")),
            "files[0].path",
        )
        for path in (
            "../v1/data/{}",
            "data/train-00001-00.parquet",
            "data\\{}",
            "data/{}\0",
            "data//{}",
        )
    ),
    (put("files", 0, "split", to="a/b"), "files[0].split"),
    (put("files", 0, "unit", to=10**18), "files[0].unit"),
    (put("files", 0, "bytes", to=10**30), "files[0].bytes"),
    (put("files", 0, "bytes", to=0), "files[0].bytes"),
    (put("files", 0, "rows", to=-1), "files[0].rows"),
    (put("files", 0, "rows", to=True), "files[0].rows"),
    (put("files", 0, "rows", to=3.0), "files[0].rows"),
    (put("files", 0, "sha256", to="x"), "files[0].sha256"),
    *(
        (put("files", 0, "row_groups", to=groups), "files[0].row_groups")
        for groups in ([0, 3], [0, 2, 1], [1, 2], [], [0] * 1000, [0, 10**18])
    ),
    (put("files", 0, "logical", to={"x": "zz"}), "files[0].logical.x"),
    (put("files", 0, "extra", to=1), "files"),
    (put("other_files", "../x", to={"bytes": 1, "sha256": "a" * 64}), "other_files"),
    (put("other_files", "data/x", to={"bytes": 1, "sha256": "a" * 64}), "other_files"),
    (
        put("other_files", "manifest.json", to={"bytes": 1, "sha256": "a" * 64}),
        "other_files",
    ),
    (put("inputs", 0, "path", to="q"), "inputs[0].file_id"),
    (put("totals", "rows", to=4), "totals"),
    (put("splits", to={}), "splits"),
    (put("account", "tokens", to=19), "account"),
    (put("accounts", "c", "tokens", to=-1), "accounts[...].tokens"),
    (put("accounts", "c", "kept", to=True), "accounts[...].kept"),
    (put("accounts", "c", "kept", to=1.0), "accounts[...].kept"),
    (put("accounts", "c", "kept", to=1 << 70), "accounts[...].kept"),
    (put("accounts", "c", "filtered", to=[1]), "accounts[...].filtered"),
    (
        put("accounts", "c", "filtered", to={"a": 1, "empty": "1"}),
        "accounts[...].filtered[...]",
    ),
    (put("accounts", "c", "surprise", to=1), "accounts"),
    (put("accounts", "c", to={}), "account"),
    (put("config", to={"build": {"kept": [["a", "b", "c"]]}}), "config.build.kept[0]"),
    (put("config", to={"build": {"kept": [["a", "int65"]]}}), "config.build.kept[0]"),
    (put("config", to={"build": {"pack": 1}}), "config.build.pack"),
    (
        put("config", to={"sources": {"a": {}, "b": {"texts": {"preference": 1}}}}),
        "config.sources[...].texts.preference",
    ),
    (
        put("tokenizer", to={"a": {}, "b": {"files": {"x": "y"}}}),
        "tokenizer[...].files[...]",
    ),
    (put("tokenizer", to={"a": {"prefix": [1, -1]}}), "tokenizer[...].prefix[1]"),
    (put("lineage", "inputs_fingerprint", to="0" * 64), "lineage"),
    (put("lineage", "parents", to=[{"dataset": "a"}]), "lineage.parents[0].version"),
    (put("produced_by", to={"a": 1}), "produced_by[...]"),
    (put("surprise", to=1), "surprise"),
]


@pytest.mark.parametrize(("change", "key"), CHANGES)
def test_well_sealed_nonsense_is_refused_by_file_and_key(change: Any, key: str) -> None:
    with pytest.raises(IntegrityError, match=f"^m.json: {re.escape(key)}") as caught:
        Manifest.from_bytes(resealed(small().to_bytes(), change), "m.json")
    assert caught.value.details["file"] == "m.json"
    assert caught.value.details["key"] == key


@pytest.mark.parametrize("key", sorted(json.loads(small().to_bytes())))
def test_every_key_is_required(key: str) -> None:
    value = json.loads(small().to_bytes())
    del value[key]
    data = canonical_json(value) if key == "sha256" else seal(value)
    with pytest.raises(IntegrityError, match=f"m.json: {key} is"):
        Manifest.from_bytes(data, "m.json")


def test_a_file_or_an_input_listed_twice_is_refused() -> None:
    manifest = small()
    for key, wrong in (
        ("files", replace(manifest, files=manifest.files * 2)),
        ("inputs", replace(manifest, inputs=manifest.inputs * 2)),
    ):
        with pytest.raises(IntegrityError, match=f"document: {key} is"):
            Manifest.from_bytes(wrong.to_bytes())


def test_a_record_holds_only_its_own_parts_and_source() -> None:
    manifest = small()
    record = a_record(unit=1)
    bad = QuarantineEntry(
        path="quarantine/00002.parquet", bytes=1, sha256="a" * 64, rows=1
    )
    for key, wrong in (
        ("parts", replace(record, parts=manifest.files)),
        (
            "inputs",
            replace(record, source="d", inputs=(ranged(manifest.inputs[0], 0, 1),)),
        ),
        ("quarantine.path", replace(record, quarantine=bad)),
    ):
        with pytest.raises(IntegrityError, match=f"document: {key} is"):
            UnitRecord.from_bytes(wrong.to_bytes())


# The account against the files


def test_check_compares_accounts_and_files() -> None:
    manifest = small()
    manifest.check()
    shard, account = manifest.files[0], manifest.accounts["c"]
    for wrong in (
        replace(manifest, files=(replace(shard, rows=4),)),
        replace(manifest, files=(replace(shard, tokens=21),)),
        replace(manifest, files=(replace(shard, documents=1),)),
        replace(manifest, files=()),
        replace(manifest, accounts={}),
        replace(manifest, accounts={"c": replace(account, pad=5)}),
        replace(manifest, accounts={"c": Account.total([account, account])}),
        replace(manifest, seq_length=9),
    ):
        with pytest.raises(AccountError, match=r"manifest\.json"):
            wrong.check()


# Odd values

#: Values that are nearly right somewhere, and right nowhere.
ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        1.0,
        1 << 62,
        -(1 << 63),
        1 << 70,
        "",
        "x",
        "train",
        "a/b",
        [],
        {},
    ),
    *(
        [0],
        [0, 2],
        [0, True],
        [0, 2.0],
        [0, 2, 1],
        [1, 2],
        [[0]],
        ["0"],
        [0, 3],
        {"bytes": 1},
        "é",
        "a" * 64,
    ),
    *("a" * 63, "A" * 64, "0" * 32, "0" * 64, "0" * 33),
    *({"x": "0" * 32}, {"x": "0" * 31}, {"x": 1}, {"": "0" * 96}),
    *(
        "data/train-00000-00.parquet",
        "data/train-00001-00.parquet",
        10_000_000,
        "a\n",
        "x" * 65,
    ),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a JSON value."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [
        path,
        *(found for key, inner in items for found in places(inner, (*path, key))),
    ]


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
        try:
            found = Manifest.from_bytes(seal(bad), "m.json")
        except IntegrityError:
            continue
        # A value that is as good as the other.
        assert found.to_bytes() == seal(bad), path


@pytest.mark.parametrize("text", ["1e22", "1.50", "1E1", "-0.0e0"])
def test_a_number_that_is_written_in_another_way_is_refused(text: str) -> None:
    manifest = replace(small(), config={"x": 1234.5})
    data = manifest.to_bytes().replace(b"1234.5", text.encode())
    value = {key: each for key, each in json.loads(data).items() if key != "sha256"}
    assert canonical_json(value) not in data
    content = data.replace(f',"sha256":"{manifest.sha256}"'.encode(), b"")
    data = data.replace(
        manifest.sha256.encode(), hashlib.sha256(content).hexdigest().encode()
    )
    with pytest.raises(IntegrityError, match="canonical"):
        Manifest.from_bytes(data)


# Size


def large(count: int) -> Manifest:
    """A manifest of ``count`` shards with 50 row groups each, inputs and ledger
    records.
    """
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
    entries = tuple(
        replace(one.inputs[0], path=path, file_id=file_id("c", path)) for path in paths
    )
    ledger = {
        f"ledger/{unit:05d}.json": one.other_files["README.md"] for unit in range(count)
    }
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
    more = calls(lambda: Manifest.from_bytes(many)) - calls(
        lambda: Manifest.from_bytes(few)
    )
    # Of a shard, an input and a ledger record together; it was 4,000.
    assert more / 200 < 60


def test_the_seal_is_not_computed_again() -> None:
    manifest = large(50)
    again = Manifest.from_bytes(manifest.to_bytes())
    assert calls(lambda: again.sha256) < 10
    assert again.sha256 == manifest.sha256
    assert (
        replace(again, version=2).sha256
        == replace(manifest, version=2).sha256
        != again.sha256
    )
