"""What differs between two versions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.store.support import a_manifest, a_shard, build_store, copy_store
from tokenlake import Catalog, Manifest
from tokenlake.base import file_id
from tokenlake.cli.app import main
from tokenlake.errors import NotFoundError
from tokenlake.runtime.store import (
    Account,
    FileEntry,
    InputFileEntry,
    LocalStore,
    Parent,
    ShardEntry,
    compare,
    shard_path,
)

Output = pytest.CaptureFixture[str]


def shard(
    unit: int, content: str, written: str = "", part: int = 0, **columns: str
) -> ShardEntry:
    """A shard of so much content (8 hex digits at most), written in some way."""
    digest = f"{content}{written}".encode().hex().rjust(64, "0")[-64:]
    logical = {"input_ids": content.encode().hex().rjust(32, "0")[-32:], **columns}
    return a_shard(
        path=shard_path("train", unit, part),
        unit=unit,
        part=part,
        sha256=digest,
        logical=logical,
    )


def source(path: str, size: int = 1, token: str = "t") -> InputFileEntry:
    return InputFileEntry(
        source="s", path=path, size=size, token=token, file_id=file_id("s", path)
    )


def with_(version: int = 1, **fields: Any) -> Manifest:
    return a_manifest(version=version, **fields)


# JSON values, as configurations hold them


def changes(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Key, both values, and which side has the key, of all that differs between two
    configurations.
    """
    return [
        dataclasses.astuple(change)
        for change in compare(with_(config=a), with_(config=b)).config
    ]


def test_only_what_differs_by_dotted_keys() -> None:
    a = {
        "x": {"y": 1, "z": [1, 2]},
        "same": 1,
        "gone": None,
        "many": [{"n": 1}, {"n": 2}],
        "type": 1,
    }
    b = {
        "x": {"y": 2, "z": [1, 3]},
        "same": 1,
        "new": [],
        "many": [{"n": 1}, {"n": 3}],
        "type": True,
    }
    assert changes(a, b) == [
        ("gone", None, None, "a"),
        ("many[1].n", 2, 3, "both"),
        ("new", None, [], "b"),
        ("type", 1, True, "both"),
        ("x.y", 1, 2, "both"),
        ("x.z", [1, 2], [1, 3], "both"),
    ]


def test_what_has_another_shape_is_one_change() -> None:
    assert changes({"x": {"y": 1}}, {"x": 1}) == [("x", {"y": 1}, 1, "both")]
    assert changes({"x": [{"y": 1}]}, {"x": []}) == [("x", [{"y": 1}], [], "both")]
    assert changes({"x": [{"y": 1}]}, {"x": {"[0]": {"y": 1}}})[0][0] == "x"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text("xy", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text("xyz", min_size=1, max_size=2), VALUES, max_size=4)


@settings(max_examples=50)
@given(OBJECTS, OBJECTS)
def test_no_change_means_equal_and_sides_mirror(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    assert changes(a, a) == []
    found = changes(a, b)
    assert (json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)) == (
        not found
    )
    flip = {"both": "both", "a": "b", "b": "a"}
    assert changes(b, a) == [
        (key, after, before, flip[sides]) for key, before, after, sides in found
    ]


# Shards


def pairs_of(a: list[ShardEntry], b: list[ShardEntry]) -> Any:
    return compare(with_(files=tuple(a)), with_(files=tuple(b)))


def test_shards_by_bytes_tokens_and_names() -> None:
    a = [
        shard(0, "one"),
        shard(1, "two"),
        shard(2, "three"),
        shard(3, "four"),
        shard(4, "five"),
    ]
    b = [shard(0, "one"), shard(1, "new"), shard(2, "two")]
    b += [shard(3, "four", "w"), shard(5, "three", "w", columns="x")]
    pairs = pairs_of(a, b).files
    assert [
        (pair.kinship, pair.a and pair.a.unit, pair.b and pair.b.unit, pair.columns)
        for pair in pairs
    ] == [
        ("same_bytes", 0, 0, ()),
        ("same_bytes", 1, 2, ()),
        ("same_tokens", 2, 5, ("columns",)),
        ("same_tokens", 3, 3, ()),
        ("only_a", 4, None, ()),
        ("only_b", None, 1, ()),
    ]
    assert [pair.renamed for pair in pairs] == [False, True, True, False, False, False]


def test_a_unit_is_as_its_least_alike_file() -> None:
    a = [shard(0, "one"), shard(0, "two", part=1), shard(1, "three"), shard(2, "gone")]
    b = [shard(0, "one"), shard(0, "2", part=1), shard(1, "three")]
    b += [shard(3, "new"), shard(3, "newer", part=1)]
    assert pairs_of(a, b).units == {
        "same_bytes": 1,
        "different": 1,
        "only_a": 1,
        "only_b": 1,
    }


CONTENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "w"])), max_size=5
)


@settings(max_examples=50)
@given(CONTENTS, CONTENTS)
def test_each_shard_is_paired_once(
    a: list[tuple[str, str]], b: list[tuple[str, str]]
) -> None:
    left = [shard(unit, *content) for unit, content in enumerate(a)]
    right = [shard(unit, *content) for unit, content in enumerate(b)]
    pairs = pairs_of(left, right).files
    assert sorted(pair.a.path for pair in pairs if pair.a) == sorted(
        each.path for each in left
    )
    assert sorted(pair.b.path for pair in pairs if pair.b) == sorted(
        each.path for each in right
    )
    for pair in pairs:
        if pair.a and pair.b:
            assert (pair.a.sha256 == pair.b.sha256) == (pair.kinship == "same_bytes")
            assert (pair.a.logical == pair.b.logical) == (
                pair.kinship in ("same_bytes", "same_tokens")
            )


# Manifests


def test_a_version_is_equal_to_itself_under_another_number() -> None:
    one = with_(
        1,
        files=(shard(0, "x"),),
        inputs=(source("a"),),
        other_files={"README.md": FileEntry(bytes=1, sha256="1" * 64)},
    )
    two = dataclasses.replace(
        one, version=2, other_files={"README.md": FileEntry(bytes=1, sha256="2" * 64)}
    )
    found = compare(one, two)
    assert found.equal
    assert found.parts == ()
    assert (found.a, found.b) == ("code@v1", "code@v2")
    assert found.kinships == {"same_bytes": 1}


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("identity", {"fingerprint": "b" * 64}),
        ("config", {"config": {"build": {"pack": 1}}}),
        ("tokenizer", {"tokenizer": {"s": {"probe": "x"}}}),
        ("inputs", {"inputs": (source("a"),)}),
        ("files", {"files": (shard(0, "x"),)}),
        (
            "others",
            {
                "other_files": {
                    "quarantine/00000.parquet": FileEntry(bytes=1, sha256="1" * 64)
                }
            },
        ),
        ("figures", {"accounts": {"s": Account(rows_read=1, filtered={"empty": 1})}}),
        ("parents", {"parents": (Parent(dataset="p", version=1, sha256="1" * 64),)}),
        ("produced_by", {"produced_by": {"pyarrow": "1"}}),
    ],
)
def test_each_part_is_noticed(part: str, fields: dict[str, Any]) -> None:
    found = compare(with_(1), with_(2, **fields))
    assert part in found.parts
    assert set(found.parts) <= {part, "figures"}
    assert not found.equal
    json.dumps(found.to_json())


def test_inputs_and_figures() -> None:
    a = with_(
        1,
        inputs=(source("a"), source("b"), source("c")),
        accounts={"s": Account(rows_read=3, kept=3)},
    )
    b = with_(
        2,
        inputs=(source("a"), source("b", 2, "u"), source("d")),
        accounts={"s": Account(rows_read=5, filtered={"empty": 5})},
    )
    found = compare(a, b)
    assert [(pair.change, pair.file.path) for pair in found.inputs] == [
        ("changed", "b"),
        ("removed", "c"),
        ("added", "d"),
    ]
    assert found.inputs_same == 1
    assert [(count.name, count.a, count.b, count.more) for count in found.account] == [
        ("rows_read", 3, 5, 2),
        ("filtered.empty", 0, 5, 5),
        ("kept", 3, 0, -3),
    ]


def test_ten_thousand_shards_under_other_names() -> None:
    a = with_(1, files=tuple(shard(unit, f"{unit}") for unit in range(10_000)))
    b = with_(2, files=tuple(shard(unit, f"{unit + 1}") for unit in range(10_000)))
    found = compare(a, b)  # a square of it would take minutes
    assert found.kinships["same_bytes"] == 9999


# The command


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("diff"), tokenizer_dir)


def test_two_real_versions(lake: Path) -> None:
    found = tl.diff("small@v1", "small", store=lake)
    assert found == tl.diff(f"{lake}/small@v1", f"{lake}/small/v2")
    assert found.parts == ("identity", "inputs", "files", "figures")
    assert [pair.file.path for pair in found.inputs] == ["sea.txt"]
    assert found.kinships == {"same_bytes": 3, "different": 1}
    assert found.units == {"same_bytes": 1, "different": 1}
    assert tl.diff("small@v2", "small@2", store=lake).equal
    with pytest.raises(NotFoundError, match="small@v9"):
        tl.diff("small@v1", "small@v9", store=lake)


def test_no_data_is_read(lake: Path, tmp_path: Path) -> None:
    copy = copy_store(lake, tmp_path / "copy")
    for path in copy.rglob("*.parquet"):
        path.unlink()
    Catalog(LocalStore(copy)).set_tag("small", "prod", 1)
    assert not tl.diff("small@prod", "small", store=copy).equal


def test_the_command(lake: Path, capsys: Output) -> None:
    arguments = ["diff", "small@v1", "small@v2", "--store", str(lake)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert (
        lines[0] == "small@v1 and small@v2 differ in: identity, inputs, files, figures"
    )
    for expected in (
        "Inputs (2 the same)",
        "added notes: sea.txt 37 B",
        "same bytes 3 1",
        "different 1 1",
        "documents 79 81 +2",
        "quarantined.null_text 1 1",
    ):
        assert expected in lines
    assert max(map(len, captured.out.splitlines())) <= 80
    assert captured.err == "\n1 shard not the same: --files lists them\n"
    assert main([*arguments, "--files"]) == 0
    assert "data/train-00000-00.parquet different" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps(tl.diff("small@v1", "small@v2", store=lake).to_json())
    )


def test_its_exit_codes_are_gits(lake: Path, capsys: Output) -> None:
    store = ["--store", str(lake)]
    assert main(["diff", "small@v1", "small@v2", *store, "--exit-code"]) == 1
    assert main(["diff", "small@v2", "small@v2", *store, "--exit-code"]) == 0
    assert "small@v2 and small@v2 are equal" in capsys.readouterr().out
    assert main(["diff", "small@v1", "smal", *store]) == 2
