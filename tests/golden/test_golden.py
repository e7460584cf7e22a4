"""A released version stays readable, verifiable, and is built again byte for byte
from the same inputs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make import CONFIGS, DATA, configure
from tokenlake import Catalog, Manifest, verify
from tokenlake.etl import WorkerPool, build_dataset
from tokenlake.runtime.store import open_store

VERSIONS = sorted(path.parent.name for path in (DATA / "store").glob("*/v1"))
EARLIER = sorted(path.parent.name for path in (DATA / "earlier").glob("*/v1"))
"""Written before ids were stored in 16 bits (`chat`, `packed`), or before shards had
key-values (`indices`).
"""


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store that today's code builds from the released inputs, tokenizers and
    configurations.
    """
    root = tmp_path_factory.mktemp("golden")
    for part in ("inputs", "tokenizers"):
        shutil.copytree(DATA / part, root / part)
    with pytest.MonkeyPatch.context() as patch, WorkerPool(1) as pool:
        patch.chdir(root)
        for name in CONFIGS:
            build_dataset(configure(name), pool=pool)
        yield root / "store"


def manifest(store: Path, dataset: str) -> Manifest:
    return Catalog(open_store(store)).manifest(dataset, 1)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a version but its clocks and its claim."""
    found = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if not name.startswith(("runs/", "claim"))
    }


def writer(store: Path) -> dict[str, str]:
    return manifest(store, "packed").produced_by


def tokenizer_engine(store: Path) -> str:
    """Name of the tokenizer implementation that encoded the first unit of `packed`."""
    return json.loads((store / "packed" / "v1" / "ledger" / "00000.json").read_bytes())[
        "engine"
    ]


def without_encoding(record: Any) -> Any:
    """A manifest without what depends on the writer's release: its name, sizes,
    offsets and file hashes.
    """
    skipped = {
        "produced_by",
        "bytes",
        "sha256",
        "row_group_offsets",
        "other_files",
        "size",
        "parents",
    }
    if isinstance(record, dict):
        return {
            name: without_encoding(value)
            for name, value in record.items()
            if name not in skipped
        }
    return (
        [without_encoding(each) for each in record]
        if isinstance(record, list)
        else record
    )


def test_every_configuration_has_a_released_version() -> None:
    assert set(CONFIGS) <= set(VERSIONS)


@pytest.mark.parametrize("dataset", VERSIONS)
def test_released_version_is_whole(dataset: str) -> None:
    report = verify(open_store(DATA / "store"), dataset, 1, deep=True)
    assert report.problems == ()


@pytest.mark.parametrize("dataset", VERSIONS)
def test_rebuilt_version_holds_the_released_tokens(dataset: str, rebuilt: Path) -> None:
    got, expected = (
        manifest(store, dataset).to_json() for store in (rebuilt, DATA / "store")
    )
    assert without_encoding(got) == without_encoding(expected)


@pytest.mark.parametrize("dataset", EARLIER)
def test_a_version_of_an_earlier_release_is_whole_and_holds_the_same_tokens(
    dataset: str, rebuilt: Path
) -> None:
    assert verify(open_store(DATA / "earlier"), dataset, 1, deep=True).problems == ()
    got, expected = (
        manifest(store, dataset).to_json() for store in (rebuilt, DATA / "earlier")
    )
    assert without_encoding(got) == without_encoding(expected)


@pytest.mark.parametrize("dataset", VERSIONS)
def test_rebuilt_version_has_the_released_bytes(dataset: str, rebuilt: Path) -> None:
    if writer(DATA / "store") != writer(rebuilt):
        pytest.skip(
            f"written by {writer(DATA / 'store')}, rebuilt by {writer(rebuilt)}: encodings may differ"
        )
    got, expected = (
        files(rebuilt / dataset / "v1"),
        files(DATA / "store" / dataset / "v1"),
    )
    assert sorted(got) == sorted(expected)
    differing = [name for name in got if got[name] != expected[name]]
    if tokenizer_engine(rebuilt) != tokenizer_engine(DATA / "store"):
        # Another engine makes the same tokens. The records of units name it, and the
        # manifest has their hashes.
        differing = [
            name
            for name in differing
            if not is_same_record(name, got[name], expected[name])
        ]
    assert differing == []


def is_same_record(name: str, got: bytes, expected: bytes) -> bool:
    """Whether two JSON files differ only in what depends on releases and engines."""
    if not name.endswith(".json"):
        return False
    records = [without_encoding(json.loads(data)) for data in (got, expected)]
    for record in records:
        record.pop("engine", None)
    return records[0] == records[1]
