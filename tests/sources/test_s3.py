"""Inputs on S3: moto's server and real s3fs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from moto.s3.models import s3_backends

from tests import token_files
from tests.builds import config_of
from tests.contracts import test_token_sources as token_sources
from tests.seeds import promise
from tests.servers.base import Fault
from tests.servers.s3 import KEY, SECRET, S3Server
from tests.sources.remote_support import (
    corpus,
    documents,
    everything,
    jsonl,
    listed,
    read_rows_of,
    require_resumed,
    require_same_as_local,
)
from tokenlake.errors import (
    ConfigError,
    InputChangedError,
    SourceError,
    SourceNotFoundError,
)
from tokenlake.etl import build_dataset
from tokenlake.etl.sources import RowBatch, list_inputs, opened, read_rows, split_files
from tokenlake.runtime.store import close_filesystems

TREE = {
    "raw/a.jsonl": b"{}",
    "raw/part-0.jsonl": b"{}",
    "raw/part-1.jsonl.gz": b"x",
    "raw/part-10.jsonl": b"{}",
    "raw/deep/er/b.parquet": b"x",
    "raw/deep/c.txt": b"x",
    "raw/deep/readme.md": b"x",
    "raw/_tmp/d.jsonl": b"{}",
    "raw/.hidden.jsonl": b"{}",
    "raw/folder/": b"",
    "rawer/e.jsonl": b"{}",
}


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with S3Server() as server:
        client = server.client()
        for bucket in ("lake", "tree", "many"):
            client.create_bucket(Bucket=bucket)
        for key, data in TREE.items():
            client.put_object(Bucket="tree", Key=key, Body=data)
        yield server
    close_filesystems()


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    running.log.clear()
    running.faults.clear()
    running.refuse = False
    return running


def put(server: S3Server, name: str, data: bytes, bucket: str = "lake") -> str:
    server.client().put_object(Bucket=bucket, Key=name, Body=data)
    return f"s3://{bucket}/{name}"


def paths(server: S3Server, *urls: str, **options: Any) -> list[str]:
    return [
        file.path for file in listed(*urls, storage_options=server.options(), **options)
    ]


class TestListing:
    def test_a_folder_is_searched_for_known_extensions(self, server: S3Server) -> None:
        expected = ["a.jsonl", "deep/c.txt", "deep/er/b.parquet"]
        expected += ["part-0.jsonl", "part-1.jsonl.gz", "part-10.jsonl"]
        assert paths(server, "s3://tree/raw") == expected
        assert paths(server, "s3://tree/raw/") == expected
        assert paths(server, "s3://tree") == [
            *(f"raw/{path}" for path in expected),
            "rawer/e.jsonl",
        ]
        assert paths(server, "s3://tree/raw", type="text") == [
            "deep/c.txt",
            "deep/readme.md",
        ]

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("raw/*.jsonl", ["a.jsonl", "part-0.jsonl", "part-10.jsonl"]),
            ("raw/part-[0-9].jsonl*", ["part-0.jsonl", "part-1.jsonl.gz"]),
            ("raw/part-?.jsonl", ["part-0.jsonl"]),
            (
                "raw/**/*.jsonl",
                ["_tmp/d.jsonl", "a.jsonl", "part-0.jsonl", "part-10.jsonl"],
            ),
            ("raw/*/er/*", ["deep/er/b.parquet"]),
            ("**/*.parquet", ["raw/deep/er/b.parquet"]),
            ("raw*/e.jsonl", ["rawer/e.jsonl"]),
            ("raw/[!a].jsonl", []),
        ],
    )
    def test_globs(self, server: S3Server, pattern: str, expected: list[str]) -> None:
        if not expected:
            with pytest.raises(SourceNotFoundError):
                paths(server, f"s3://tree/{pattern}")
        else:
            assert paths(server, f"s3://tree/{pattern}") == expected
            assert all(request.method == "GET" for request in server.log)

    def test_a_folder_has_the_splits_that_names_or_a_card_say(
        self, server: S3Server
    ) -> None:
        for name in ("train-0", "train-1", "test-0"):
            put(server, f"splits/{name}.jsonl", b"{}")
        url, written = "s3://lake/splits", {"split_from": "option"}
        assert paths(server, url) == ["train-0.jsonl", "train-1.jsonl"]
        assert paths(server, url, split="test", **written) == ["test-0.jsonl"]
        assert paths(server, f"{url}/t*-0.jsonl") == ["test-0.jsonl", "train-0.jsonl"]
        with pytest.raises(
            ConfigError,
            match=r"no split 'dev'; .* it has train \(2 files\), test \(1 file\)",
        ):
            paths(server, url, split="dev", **written)
        put(
            server,
            "splits/README.md",
            b"---\nconfigs:\n- config_name: x\n  data_files: '*-0.jsonl'\n---\n",
        )
        assert (
            paths(server, url)
            == paths(server, url, subset="x")
            == ["test-0.jsonl", "train-0.jsonl"]
        )

    def test_globs_agree_with_those_of_local_files(
        self, server: S3Server, tmp_path: Path
    ) -> None:
        for name, data in TREE.items():
            if not name.endswith("/"):
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_bytes(data)
        patterns = [
            "raw",
            "raw/**/*.jsonl",
            "raw/**",
            "**/*.jsonl*",
            "raw/*",
            "raw*/*.jsonl",
            "raw/p*-?.*",
        ]
        for pattern in patterns:
            given = "text" if pattern in ("raw/**", "raw/*") else None
            local = [file.path for file in listed(f"{tmp_path}/{pattern}", type=given)]
            assert paths(server, f"s3://tree/{pattern}", type=given) == local, pattern

    def test_lists_are_relative_to_the_common_folder_and_without_repeats(
        self, server: S3Server
    ) -> None:
        found = paths(
            server,
            "s3://tree/raw/deep/er",
            "s3://tree/raw/deep/c.txt",
            "s3a://tree/raw/deep/*.txt",
        )
        assert found == ["c.txt", "er/b.parquet"]

    def test_more_objects_than_a_page_cost_a_request_a_page(
        self, server: S3Server
    ) -> None:
        # Moto runs in this process: no 1,205 requests.
        inside = s3_backends["123456789012"]["aws"]
        for index in range(1205):
            inside.put_object("many", f"in/{index:05d}.jsonl", b"")
        files = listed("s3://many/in", storage_options=server.options())
        assert [file.path for file in files] == [
            f"{index:05d}.jsonl" for index in range(1205)
        ]
        assert len(server.requests("GET", "list-type=2")) == 2
        assert len(server.log) == 3  # and the question whether `in` itself is an object

    def test_an_object_and_its_listing_have_one_token(self, server: S3Server) -> None:
        (alone,) = listed("s3://tree/raw/a.jsonl", storage_options=server.options())
        (listed_one,) = listed(
            "s3://tree/raw/a*.jsonl", storage_options=server.options()
        )
        assert alone == listed_one
        assert alone.token == "etag:99914b932bd37a50b983c5e7c90ae93b"
        assert alone.url == "s3://tree/raw/a.jsonl"

    def test_a_missing_object_names_near_ones(self, server: S3Server) -> None:
        with pytest.raises(
            SourceNotFoundError,
            match=r"nothing matches.*Did you mean 's3://tree/raw/a\.jsonl'",
        ):
            paths(server, "s3://tree/raw/aa.jsonl")
        with pytest.raises(
            SourceNotFoundError, match=r"'s3://tree/' holds: raw, rawer"
        ):
            paths(server, "s3://tree/zzzzzzzz.parquet")

    def test_a_folder_without_inputs_says_what_it_holds(self, server: S3Server) -> None:
        with pytest.raises(
            SourceNotFoundError,
            match=r"no file of type csv in 's3://tree/raw'\. It holds .*\.gz",
        ):
            paths(server, "s3://tree/raw", type="csv")

    def test_a_missing_bucket(self, server: S3Server) -> None:
        with pytest.raises(SourceNotFoundError, match="NoSuchBucket"):
            paths(server, "s3://nowhere/a*.jsonl")

    def test_two_buckets_are_refused(self, server: S3Server) -> None:
        with pytest.raises(ConfigError, match="two storages, s3://tree and s3://lake"):
            paths(server, "s3://tree/raw", "s3://lake/raw")


class TestReading:
    @promise(239, 143, 144, 145, 146, 147, 184)
    def test_every_format_gives_the_texts_and_positions_of_local_files(
        self, server: S3Server, tmp_path: Path
    ) -> None:
        for name, data in corpus().items():
            put(server, f"same/{name}", data)
        require_same_as_local(
            tmp_path, "s3://lake/same", storage_options=server.options()
        )

    @promise(245)
    def test_a_killed_connection_and_a_slow_down_lose_nothing(
        self, server: S3Server
    ) -> None:
        texts = documents(10_000)
        files = listed(
            put(server, "long.jsonl", jsonl(texts)), storage_options=server.options()
        )
        require_resumed(server, files, texts, "long.jsonl", status=503)

    def test_listings_are_tried_again(self, server: S3Server) -> None:
        server.faults.extend([Fault(status=503), Fault(after=10)])
        assert paths(server, "s3://tree/raw/part-?.jsonl") == ["part-0.jsonl"]
        assert not server.faults

    def test_a_replaced_object(self, server: S3Server) -> None:
        files = listed(
            put(server, "x.jsonl", jsonl(documents(20))),
            storage_options=server.options(),
        )
        put(server, "x.jsonl", jsonl(documents(20)[::-1]))
        with pytest.raises(InputChangedError, match="another version"):
            read_rows_of(files, storage_options=server.options())
        # The storage refuses by itself: no byte of the other version was sent.
        assert all(
            "if-match" in request.headers
            for request in server.requests("GET", "x.jsonl")
        )

    def test_an_object_that_is_replaced_while_it_is_read(
        self, server: S3Server
    ) -> None:
        (file,) = listed(
            put(server, "x.jsonl", jsonl(documents(20))),
            storage_options=server.options(),
        )
        with pytest.raises(InputChangedError), opened(file, server.options()) as data:
            data.pread(100, 0)
            put(server, "x.jsonl", jsonl(documents(21)))

    def test_refused_access_names_the_chain_and_is_not_tried_again(
        self, server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.refuse = True
        monkeypatch.setenv("LAKE_KEY", "AKIAOTHER")
        with pytest.raises(
            SourceError,
            match=r"access is denied .*places that AWS's tools use.*\{key: \{env: NAME\}",
        ):
            paths(server, "s3://tree/raw/a*.jsonl")
        assert len(server.log) == 1

    def test_no_credentials_at_all(
        self, server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        options = {
            "endpoint_url": server.url,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        with pytest.raises(SourceError, match=r"access is denied .*NoCredentialsError"):
            listed("s3://tree/raw/a.jsonl", storage_options=options)

    def test_the_patience_is_bounded(
        self, server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "1.5")
        server.faults.extend([Fault(status=503)] * 100)
        with pytest.raises(SourceError, match=r"cannot be read: tried \d+ times"):
            paths(server, "s3://tree/raw/a*.jsonl")
        assert len(server.log) < 20


def config(
    server: S3Server, tmp_path: Path, tokenizer: Path, urls: str
) -> dict[str, Any]:
    made = config_of(
        tmp_path, urls, tokenizer, pack=128, storage_options=server.options()
    )
    return made | {"source": {"unit_size": 60_000}}


class TestBuild:
    def test_a_whole_build_by_two_processes_and_no_secret_anywhere(
        self,
        server: S3Server,
        tmp_path: Path,
        tokenizer_dir: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        for name, data in corpus().items():
            put(server, f"build/{name}", data)
        server.faults.extend([Fault(after=1000), Fault(status=503)] * 3)
        wanted = config(server, tmp_path, tokenizer_dir, "s3://lake/build/**/*.[jp]*")
        result = build_dataset(wanted, workers=2)
        assert result.status == "built"
        assert result.units_built > 3
        assert not server.faults
        total = sum(entry.documents for entry in result.manifest.files)
        assert total == sum(
            len(everything("s3://lake/build/" + name, storage_options=server.options()))
            for name in corpus()
            if name != "e.txt"
        )
        told = "".join(capfd.readouterr())
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(written) > 5
        for secret in (KEY, SECRET):
            assert secret not in told
            assert not [
                path for path in written if secret.encode() in path.read_bytes()
            ]

    def test_a_literal_secret_works_and_is_kept_nowhere(
        self,
        server: S3Server,
        tmp_path: Path,
        tokenizer_dir: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        put(server, "one.jsonl", jsonl(documents(50)))
        wanted = config(server, tmp_path, tokenizer_dir, "s3://lake/one.jsonl")
        wanted["datasets"][0]["storage_options"] |= {"key": KEY, "secret": SECRET}
        server.refuse = True
        assert build_dataset(wanted, workers=1).status == "built"
        wanted["datasets"][0]["storage_options"]["key"] = "AKIAOTHER" + SECRET
        wanted["name"] = "other"
        with pytest.raises(SourceError, match="access is denied") as caught:
            build_dataset(wanted, workers=1)
        assert SECRET not in str(caught.value) + repr(caught.value.details) + "".join(
            capfd.readouterr()
        )
        assert not [
            path
            for path in tmp_path.rglob("*")
            if path.is_file() and SECRET.encode() in path.read_bytes()
        ]

    def test_an_object_that_is_replaced_during_the_run(
        self, server: S3Server, tmp_path: Path, tokenizer_dir: Path
    ) -> None:
        put(server, "moving.jsonl", jsonl(documents(4000)))
        replaced: list[object] = []

        def replace(event: object) -> None:
            if type(event).__name__ == "UnitStarted" and not replaced:
                replaced.append(put(server, "moving.jsonl", jsonl(documents(4001))))

        wanted = config(server, tmp_path, tokenizer_dir, "s3://lake/moving.jsonl")
        with pytest.raises(
            InputChangedError, match=r"s3://lake/moving\.jsonl: the input changed"
        ):
            build_dataset(wanted, workers=1, on_event=replace)


@pytest.mark.parametrize("format_name", ["megatron", "numpy", "mds", "litdata"])
def test_files_of_token_ids_are_read_with_their_index(
    server: S3Server, tmp_path: Path, format_name: str
) -> None:
    token_files.WRITERS[format_name](tmp_path, token_sources.DOCUMENTS)
    for path in tmp_path.iterdir():
        put(server, f"{format_name}/{path.name}", path.read_bytes())
    source = token_sources.source_of(tmp_path, format_name)
    folder = (f"s3://lake/{format_name}/",)
    source = replace(source, data_files=folder, storage_options=server.options())
    files = list_inputs(source)
    assert len(files) == len(list(tmp_path.iterdir()))
    batches: list[RowBatch] = []
    for part in chain.from_iterable(split_files(files, 700, source.storage_options)):
        batches += read_rows(part, source)
    assert token_sources.ids_of(batches) == token_sources.DOCUMENTS
