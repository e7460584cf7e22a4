"""Croissant metadata: the keys that version 1.0 wants, references that lead
somewhere, hashes that are the files'.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.support import shared_store
from tokenlake.cli.app import main
from tokenlake.etl.export import FlatFile
from tokenlake.etl.reports import RowFiles, metadata

REQUIRED = {
    "sc:Dataset": {"@context", "conformsTo", "name", "description"},
    "cr:FileObject": {
        "@id",
        "name",
        "contentUrl",
        "contentSize",
        "encodingFormat",
        "sha256",
    },
    "cr:FileSet": {"@id", "name", "encodingFormat", "includes"},
    "cr:RecordSet": {"@id", "name", "field"},
    "cr:Field": {"@id", "name", "dataType", "source"},
}
# Properties that are Croissant's own: the context must map each to its vocabulary.
# Without that a reader takes them for properties of schema.org.
OWN_PROPERTIES = {
    "column",
    "extract",
    "field",
    "fileSet",
    "includes",
    "jsonPath",
    "recordSet",
    "repeated",
    "source",
}
TYPES = {"sc:Integer", "sc:Float", "sc:Boolean", "sc:Text", "sc:Date", "sc:DateTime"}


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """All objects that have a type, from the outside in."""
    if isinstance(value, dict):
        if "@type" in value and value["@type"] != "@json":
            yield value
        value = [each for key, each in value.items() if key != "@context"]
    if isinstance(value, list):
        for each in value:
            yield from nodes(each)


def check(found: dict[str, Any]) -> None:
    """The structure of Croissant 1.0: required keys, unique ids, references to what
    is there.
    """
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    for term in OWN_PROPERTIES:
        assert found["@context"][term] == f"cr:{term}"
    listed = list(nodes(found))
    for node in listed:
        assert REQUIRED[node["@type"]] <= node.keys(), node
    names = [node["@id"] for node in listed[1:]]
    assert len(names) == len(set(names))
    sets = {node["@id"]: node for node in listed if node["@type"] == "cr:FileSet"}
    files = {node["contentUrl"] for node in listed if node["@type"] == "cr:FileObject"}
    assert files == {path for each in sets.values() for path in each["includes"]}
    for field in (node for node in listed if node["@type"] == "cr:Field"):
        assert field["source"]["fileSet"]["@id"] in sets and field["dataType"] in TYPES


def test_show_prints_it_of_a_version(
    tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = shared_store(tokenizer_dir)
    assert main(["show", "small@v1", "--croissant", "--store", str(store)]) == 0
    found = json.loads(capsys.readouterr().out)
    check(found)
    folder = store / "small" / "v1"
    objects = [
        each for each in found["distribution"] if each["@type"] == "cr:FileObject"
    ]
    assert found["name"] == "small" and found["version"] == "1.0.0" and objects
    for each in objects:
        data = (folder / each["contentUrl"]).read_bytes()
        assert each["sha256"] == hashlib.sha256(data).hexdigest()
        assert each["contentSize"] == f"{len(data)} B"
    fields = {each["name"]: each for each in found["recordSet"][0]["field"]}
    assert (
        fields["input_ids"]["dataType"] == "sc:Integer"
        and fields["input_ids"]["repeated"]
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("int32", ("sc:Integer", False)),
        ("list<element: int32 not null>", ("sc:Integer", True)),
        ("fixed_size_list<element: int32 not null>[16]", ("sc:Integer", True)),
        ("large_string", ("sc:Text", False)),
        ("decimal128(5, 2)", ("sc:Float", False)),
        ("timestamp[us, tz=UTC]", ("sc:DateTime", False)),
        ("list<element: struct<a: int32>>", None),
        ("dictionary<values=string, indices=int32, ordered=0>", None),
    ],
)
def test_an_arrow_type_has_its_word_or_is_left_out(
    told: str, expected: tuple[str, bool] | None
) -> None:
    file = FlatFile(path="a.jsonl", split="train", bytes=1, sha256="0" * 64, rows=1)
    found = metadata("x", "y", [RowFiles("f/", "jsonl", {"c": told}, [file])])
    check(found)
    fields = found["recordSet"][0]["field"]
    assert [(each["dataType"], each.get("repeated", False)) for each in fields] == (
        [expected] if expected else []
    )
