"""Looks at datasets on the Hub and at URLs: subsets, splits, few requests, and a
proposal that builds.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.seeds import promise
from tests.servers.hub import TOKEN, HubServer, hub
from tokenlake import DatasetIntrospector
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.sources import hub_client

pytest.importorskip("huggingface_hub")

CARD = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: "en/train-*.parquet"}
  - {split: test, path: "en/test.parquet"}
- config_name: de
  data_files:
  - {split: validation, path: "de/*.parquet"}
---
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub on loopback, for a user who is not logged in."""
    import huggingface_hub.constants as constants

    for name in (
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(hub_client, "_FIRST_WAIT", 0.01)
    with hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def parquet(count: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"content": [f"Text number {i}." for i in range(count)]}), sink
    )
    return sink.getvalue()


@pytest.fixture
def books(server: HubServer) -> HubServer:
    files = {f"en/train-{i}.parquet": parquet(20) for i in range(3)}
    files |= {
        "en/test.parquet": parquet(5),
        "de/a.parquet": parquet(7),
        "README.md": CARD.encode(),
    }
    server.repo("org/books", files)
    return server


def test_subsets_splits_and_the_columns_of_the_one_that_was_asked_for(
    books: HubServer,
) -> None:
    looked = DatasetIntrospector("org/books", type="hf", subset="en")
    assert looked.configs() == ("en", "de")
    assert [(split.name, split.files) for split in looked.splits()] == [
        ("train", 3),
        ("test", 1),
    ]
    found = looked.inspect()
    (group,) = found.groups
    assert (found.files, group.rows, group.rows_exact, group.name) == (
        3,
        60,
        True,
        "books",
    )
    assert [(f.name, f.role) for f in looked.features()] == [("content", "text")]
    assert yaml.safe_load(found.proposal)["datasets"] == [
        {
            "name": "books",
            "data_files": "org/books",
            "type": "hf",
            "subset": "en",
            "split": "train",
            "content_field": "content",
        }
    ]


def test_a_subset_without_train_shows_the_split_it_has(books: HubServer) -> None:
    found = DatasetIntrospector("org/books", type="hf", subset="de").inspect()
    assert found.groups[0].rows == 7
    assert yaml.safe_load(found.proposal)["datasets"][0]["split"] == "validation"
    assert "split 'validation', the first of validation" in found.findings[0].what


def test_a_missing_number_of_a_split_is_a_finding(server: HubServer) -> None:
    names = ["train-00000-of-00003", "train-00002-of-00003", "test-00000-of-00001"]
    server.repo("org/part", {f"data/{name}.parquet": parquet(3) for name in names})
    looked = DatasetIntrospector("org/part", type="hf").inspect()
    assert [finding.what for finding in looked.findings] == [
        "2 of 3 numbered files: train-00001-of-00003 is missing"
    ]


def test_what_is_not_there_is_an_error(books: HubServer) -> None:
    with pytest.raises(ConfigError, match=r"subset 'fr'.*en, de"):
        DatasetIntrospector("org/books", type="hf", subset="fr").inspect()
    with pytest.raises(
        ConfigError, match="no split 'dev'; set `split` to one of train, test"
    ):
        DatasetIntrospector("org/books", type="hf", subset="en", split="dev").inspect()
    with pytest.raises(SourceNotFoundError, match="org/bokks"):
        DatasetIntrospector("org/bokks", type="hf").inspect()
    with pytest.raises(SourceNotFoundError, match="nothing matches 'org/books'"):
        DatasetIntrospector("org/books").inspect()  # a path, and never an id


def test_a_url_is_looked_at_as_a_file(books: HubServer) -> None:
    found = DatasetIntrospector(
        "hf://datasets/org/books/en/*.parquet", rows=1
    ).inspect()
    assert (found.files, found.groups[0].rows, found.configs) == (3, 60, ())
    assert [(split.name, split.files) for split in found.splits] == [
        ("test", 1),
        ("train", 3),
    ]
    assert found.bytes_read < 4 * 65536


@promise(112, 299, 300)
def test_discovering_tells_configs_splits_and_columns_and_which_it_chose(
    books: HubServer,
) -> None:
    found = DatasetIntrospector().discover("org/books").unwrap()
    assert (found.configs, found.config, found.splits) == (
        ("en", "de"),
        "en",
        ("train", "test"),
    )
    assert (found.features, found.roles) == ({"content": "string"}, {"text": "content"})
    assert (found.num_rows, found.num_rows_exact) == (60, True)
    assert found.remarks == (
        "this is subset 'en', the first of en, de: none of them is the default one",
    )
    assert DatasetIntrospector().discover("org/books", "de").unwrap().splits == (
        "validation",
    )
    assert "org/bokks" in str(DatasetIntrospector().discover("org/bokks").unwrap_err())


@promise(299)
def test_discovering_keeps_what_it_found_until_the_dataset_changes(
    books: HubServer, tmp_path: Path
) -> None:
    looker = DatasetIntrospector(cache_dir=tmp_path / "found")
    first = looker.discover("org/books", "de").unwrap()
    reads = len(books.asked("/resolve/"))
    assert looker.discover("org/books", "de").unwrap() == first
    assert not [
        seen
        for seen in books.asked("/resolve/")[reads:]
        if seen.path.endswith(".parquet")
    ]
    books.repos["org/books"].commit(
        {"de/a.parquet": parquet(9), "README.md": CARD.encode()}
    )
    assert looker.discover("org/books", "de").unwrap().num_rows == 9


@promise(299)
def test_a_private_dataset_is_discovered_with_a_token(server: HubServer) -> None:
    server.repo("org/own", {"data/train.jsonl": b'{"text": "a"}\n'}, private=True)
    assert DatasetIntrospector().discover("org/own").is_err()
    assert DatasetIntrospector(token=TOKEN).discover("org/own").unwrap().num_rows == 1
