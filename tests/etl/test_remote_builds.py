"""Builds on object stores: the same bytes as in a folder, resumed, reused, mixed,
read, and never a secret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

import tokenlake as tl
from tests.etl.remote_builds_support import (
    SOURCES,
    Bench,
    Bucket,
    Files,
    bucket,
    build,
    settings,
    stored,
    write_inputs,
)
from tests.seeds import promise
from tests.servers.s3 import KEY, SECRET
from tokenlake import sql as query
from tokenlake import verify
from tokenlake.cli.app import main
from tokenlake.errors import IntegrityError
from tokenlake.runtime.store import StoreAddress, close_filesystems, open_store


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs")
    write_inputs(root)
    return root


@pytest.fixture(scope="module", params=["s3", "gs"])
def lake(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    with bucket(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    with bucket("s3") as found:
        yield found


@pytest.fixture(scope="module")
def local(
    inputs: Path, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Files:
    """What a build of all sources in a folder makes."""
    store = tmp_path_factory.mktemp("local")
    build(settings(inputs, tokenizer_dir, store))
    assert verify(open_store(store), "small", 1, deep=True).ok
    return stored(store)


def require_same(found: Files, expected: Files) -> None:
    """Compare names first: that is what a person wants to know."""
    assert sorted(found) == sorted(expected)
    assert [key for key in found if found[key] != expected[key]] == []


def test_the_same_bytes_as_in_a_folder(
    lake: Bucket, inputs: Path, tokenizer_dir: Path, local: Files
) -> None:
    address = lake.address("same")
    config = settings(inputs, tokenizer_dir, address)
    assert set(build(config).values()) == {"built"}
    require_same(stored(lake, "same"), local)
    assert verify(open_store(address), "small", 1, deep=True).ok
    assert build(config) == {}  # there is nothing to do


def test_an_interrupted_build_is_resumed(
    lake: Bucket, inputs: Path, tokenizer_dir: Path, local: Files
) -> None:
    config = settings(inputs, tokenizer_dir, lake.address("resumed"))
    with pytest.raises(KeyboardInterrupt):
        build(config, bench=Bench(interrupted_at=2))
    assert "small/v1/manifest.json" not in stored(lake, "resumed")
    lake.server.log.clear()
    assert build(config) == {0: "resumed", 1: "resumed", 2: "built"}
    assert _reads_of_shards(lake) == []
    require_same(stored(lake, "resumed"), local)


def test_units_of_another_version_are_copied_inside_the_storage(
    lake: Bucket, inputs: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = settings(inputs, tokenizer_dir, lake.address("reused"), SOURCES[:2])
    build(config)
    lake.server.log.clear()
    more = settings(inputs, tokenizer_dir, lake.address("reused"))
    assert build(more) == {0: "reused", 1: "reused", 2: "built"}
    copies = [
        one
        for one in lake.server.log
        if "rewriteTo" in one.path
        or "x-amz-copy-source" in one.headers
        or "small/v2/data" in one.path
    ]
    assert copies
    build(settings(inputs, tokenizer_dir, tmp_path, SOURCES[:2]))
    build(settings(inputs, tokenizer_dir, tmp_path))
    require_same(stored(lake, "reused"), stored(tmp_path))


def _many(
    inputs: Path, tokenizer: Path, address: StoreAddress, files: int
) -> dict[str, Any]:
    """The configuration of a build of so many files, each of which is a unit of one
    shard.
    """
    folder = inputs.parent / address.url.replace("/", "-")
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"text": f"{number:02d} a lake holds water"}) + "\n"
        for number in range(files)
    ]
    for number, line in enumerate(lines):
        (folder / f"{number:02d}.jsonl").write_text(line)
    config = settings(inputs, tokenizer, address, ())
    return config | {
        "datasets": [{"name": "many", "data_files": str(folder)}],
        "source": {"unit_size": len(lines[0])},
    }


def _reads_of_shards(lake: Bucket) -> list[str]:
    log = [(one.method, unquote(one.path)) for one in lake.server.log]
    return [
        path
        for method, path in log
        if method == "GET" and "/data/train" in path.partition("?")[0]
    ]


def test_taking_over_a_unit_takes_three_requests_and_no_byte_of_its_shards(
    lake: Bucket, inputs: Path, tokenizer_dir: Path
) -> None:
    taken: list[int] = []
    for files in (2, 8):
        address = lake.address(f"cost-{files}")
        build(_many(inputs, tokenizer_dir, address, files))
        lake.server.log.clear()
        assert (
            list(
                build(_many(inputs, tokenizer_dir, address, files + 1)).values()
            ).count("reused")
            == files
        )
        assert _reads_of_shards(lake) == []
        taken.append(len(lake.server.log))
        assert verify(open_store(address), "small", 2, deep=True).ok
    assert taken[1] - taken[0] <= 3 * 6


def test_what_was_copied_and_not_recorded_is_found_again(
    lake: Bucket, inputs: Path, tokenizer_dir: Path
) -> None:
    address = lake.address("copied")
    build(_many(inputs, tokenizer_dir, address, 3))
    config = _many(inputs, tokenizer_dir, address, 4)
    with pytest.raises(KeyboardInterrupt):
        build(config, bench=Bench(interrupted_at=3))
    for unit in range(3):  # as if the run had died between the copies and their records
        open_store(address).delete(f"small/v2/ledger/{unit:05d}.json")
    lake.server.log.clear()
    assert build(config) == {0: "reused", 1: "reused", 2: "reused", 3: "built"}
    # Where a copy has the ETag of what it is a copy of.
    if lake.address("").url.startswith("s3"):
        assert _reads_of_shards(lake) == []
    assert verify(open_store(address), "small", 2, deep=True).ok


def test_a_shard_that_is_younger_than_its_record_is_read_before_it_is_taken_over(
    lake: Bucket, inputs: Path, tokenizer_dir: Path
) -> None:
    address = lake.address("younger")
    build(_many(inputs, tokenizer_dir, address, 3))
    shards = [f"small/v1/data/train-{unit:05d}-00.parquet" for unit in range(3)]
    there = lake.everything("younger")
    time.sleep(1.1)  # S3 tells the time in seconds
    damaged = there[shards[1]][:-9] + b"123456789"
    lake.put(
        "younger",
        {
            shards[0]: there[shards[0]],
            shards[1]: damaged,
            shards[2]: there[shards[2]][:-1],
        },
    )
    found = build(_many(inputs, tokenizer_dir, address, 4))
    assert found == {0: "reused", 1: "built", 2: "built", 3: "built"}
    assert verify(open_store(address), "small", 2, deep=True).ok


def test_a_storage_that_forgets_the_conditions_of_copies(
    s3: Bucket, inputs: Path, tokenizer_dir: Path
) -> None:
    s3.server.forgets_copies = True
    close_filesystems()
    try:
        address = s3.address("forgets")
        build(_many(inputs, tokenizer_dir, address, 2))
        s3.server.log.clear()
        assert (
            list(build(_many(inputs, tokenizer_dir, address, 3)).values()).count(
                "reused"
            )
            == 2
        )
        copied = [
            one.path for one in s3.server.log if "x-amz-copy-source" in one.headers
        ]
        assert [
            path for path in copied if "/data/" in path and "partNumber=1" not in path
        ] == []
        assert verify(open_store(address), "small", 2, deep=True).ok
    finally:
        s3.server.forgets_copies = False
        close_filesystems()


def test_sql_reads_copies_that_are_verified(
    lake: Bucket, inputs: Path, tokenizer_dir: Path
) -> None:
    build(settings(inputs, tokenizer_dir, lake.address("asked")))
    store, sizes = open_store(lake.address("asked")), list[int]()
    rows = query(
        store,
        "select count(*) as n, sum(len(input_ids)) as ids from small",
        on_verified=sizes.append,
    )
    shards = [data for key, data in stored(lake, "asked").items() if "/data/" in key]
    assert sorted(sizes) == sorted(map(len, shards))
    ((count, ids),) = [tuple(row.values()) for row in rows.to_pylist()]
    assert ids == 64 * count > 0
    assert query(store, 'select count(*) as n from "small/quarantine"').to_pylist() == [
        {"n": 1}
    ]
    assert not list(Path(os.environ["TOKENLAKE_SCRATCH"]).rglob("*.parquet"))


def test_a_damaged_shard_is_not_handed_to_sql(
    lake: Bucket, inputs: Path, tokenizer_dir: Path
) -> None:
    build(settings(inputs, tokenizer_dir, lake.address("damaged")))
    key, data = next(
        (key, data)
        for key, data in stored(lake, "damaged").items()
        if "/data/train" in key
    )
    lake.put("damaged", {key: data[:200] + bytes([data[200] ^ 1]) + data[201:]})
    with pytest.raises(IntegrityError, match="was changed after it was committed"):
        query(
            open_store(lake.address("damaged")), "select sum(len(input_ids)) from small"
        )


def test_a_mixture_of_parents_in_a_bucket_trains(
    s3: Bucket, inputs: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    def mix(where: StoreAddress | Path) -> dict[int, str]:
        config = settings(inputs, tokenizer_dir, where, ("notes",)) | {"pack": {}}
        for source in ("notes", "talks"):
            build(
                config
                | {
                    "name": source,
                    "datasets": [{"name": source, "data_files": str(inputs / source)}],
                }
            )
        mixed = {
            "total_rows": 40,
            "unit_rows": 16,
            "weights": {"notes": 0.5, "talks": 0.5},
            "lanes": 2,
        }
        parents = [{"name": name, "dataset": name} for name in ("notes", "talks")]
        pack = {"enabled": True, "seq_length": 16}
        save = config["save"]
        return build(
            {
                "name": "mixed",
                "datasets": parents,
                "mix": mixed | {"batch_size": 8},
                "pack": pack,
                "save": save,
            }
        )

    address = s3.address("mixed")
    assert len(mix(address)) == len(mix(tmp_path)) > 1
    require_same(stored(s3, "mixed"), stored(tmp_path))
    dataset = tl.open(f"{address.url}/mixed", storage_options=address.options)
    batches = list(tl.DataLoader(dataset, batch_size=8, seed=3, epochs=1))
    theirs = list(
        tl.DataLoader(tl.open(tmp_path / "mixed"), batch_size=8, seed=3, epochs=1)
    )
    assert len(batches) == len(theirs) > 2
    assert all(
        (a["input_ids"] == b["input_ids"]).all()
        for a, b in zip(batches, theirs, strict=True)
    )


def test_commands_with_a_store_in_a_bucket(
    s3: Bucket,
    inputs: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
    local: Files,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With options and secrets of the environment; the run in processes of its own."""
    config = settings(inputs, tokenizer_dir, "./nowhere")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    address = s3.address("commands")
    monkeypatch.setenv("TOKENLAKE_STORE_OPTIONS", json.dumps(dict(address.options)))
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tokenlake",
            *[
                "run",
                "small.yaml",
                "--no-prefect",
                "--workers",
                "1",
                "--json",
                "--store",
            ],
            address.url,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == f"{address.url}/small/v1"
    require_same(stored(s3, "commands"), local)
    assert not (tmp_path / "nowhere").exists()
    for line in (
        "ls",
        "show small",
        "verify small --deep",
        "peek small -n 1",
        "tag small prod",
        "plan small.yaml --json",
        "sql select(count(*))from(small)",
        "explain small@prod --seed 0 --batch-size 4 --step 0",
    ):
        assert main([*line.split(), "--store", address.url]) == 0, (
            line,
            capsys.readouterr(),
        )
    shown = capsys.readouterr()
    assert SECRET not in done.stdout + done.stderr + shown.out + shown.err


@promise(325)
def test_no_secret_is_written(s3: Bucket, inputs: Path, tokenizer_dir: Path) -> None:
    address = s3.address("secrets")
    literal = {**address.options, "key": KEY, "secret": SECRET}
    config = settings(inputs, tokenizer_dir, StoreAddress(address.url, literal))
    build(config)
    everything = s3.everything("secrets")
    assert len(everything) > 8
    assert [key for key, data in everything.items() if SECRET.encode() in data] == []
