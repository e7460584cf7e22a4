"""Inputs on Google Cloud Storage: a small server with generations and preconditions,
and real gcsfs.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds import config_of
from tests.seeds import promise
from tests.servers.base import Fault
from tests.servers.gcs import GcsServer
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
from tokenlake.errors import InputChangedError, SourceError, SourceNotFoundError
from tokenlake.etl import build_dataset
from tokenlake.etl.sources import opened
from tokenlake.runtime.store import close_filesystems


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server
    close_filesystems()


def paths(server: GcsServer, *urls: str) -> list[str]:
    return [file.path for file in listed(*urls, storage_options=server.options())]


class TestListing:
    def test_folders_globs_and_single_objects(self, server: GcsServer) -> None:
        for name in (
            "a.jsonl",
            "b/c.jsonl",
            "_d.jsonl",
            "b/",
            "e ü%2F#?.jsonl",
            "../inner/f.jsonl",
        ):
            server.put("lake", f"in/{name}".replace("in/../", ""), b"{}")
        assert paths(server, "gs://lake/in") == [
            "a.jsonl",
            "b/c.jsonl",
            "e ü%2F#?.jsonl",
        ]
        assert paths(server, "gcs://lake/in/*.jsonl") == [
            "_d.jsonl",
            "a.jsonl",
            "e ü%2F#?.jsonl",
        ]
        assert paths(server, "gs://lake/in/**/c.jsonl", "gs://lake/in/a.jsonl") == [
            "a.jsonl",
            "b/c.jsonl",
        ]
        with pytest.raises(
            SourceNotFoundError, match=r"Did you mean 'gs://lake/in/a\.jsonl'"
        ):
            paths(server, "gs://lake/in/a.json")

    def test_a_flat_glob_does_not_list_what_lies_below(self, server: GcsServer) -> None:
        for index in range(1500):
            server.put("lake", f"deep/below/{index}.jsonl", b"")
        server.put("lake", "deep/a.jsonl", b"{}")
        server.log.clear()
        assert paths(server, "gs://lake/deep/*.jsonl") == ["a.jsonl"]
        assert len(server.log) == 1

    def test_pages(self, server: GcsServer) -> None:
        for index in range(2500):
            server.put("lake", f"in/{index:05d}.jsonl", b"")
        server.faults.append(
            Fault(status=503, applies=lambda request: "pageToken" in request.path)
        )
        files = listed("gs://lake/in/", storage_options=server.options())
        assert [file.path for file in files] == [
            f"{index:05d}.jsonl" for index in range(2500)
        ]
        assert len({file.token for file in files}) == 2500
        assert len(server.log) == 4  # three pages, one of them twice

    def test_the_token_is_the_generation(self, server: GcsServer) -> None:
        generation = server.put("lake", "a.jsonl", b"{}").generation
        (file,) = listed("gs://lake/a.jsonl", storage_options=server.options())
        assert (file.token, file.size, file.url) == (
            f"generation:{generation}",
            2,
            "gs://lake/a.jsonl",
        )


class TestReading:
    @promise(136, 143, 144, 145, 146, 147, 184)
    def test_every_format_gives_the_texts_and_positions_of_local_files(
        self, server: GcsServer, tmp_path: Path
    ) -> None:
        for name, data in corpus().items():
            server.put("lake", f"same/{name}", data)
        require_same_as_local(
            tmp_path, "gs://lake/same", storage_options=server.options()
        )

    def test_an_object_stored_as_gzip_under_a_plain_name_is_decompressed(
        self, server: GcsServer
    ) -> None:
        found = server.put("lake", "a.jsonl", gzip.compress(jsonl(documents(30))))
        found.metadata["contentEncoding"] = "gzip"
        (file,) = listed("gs://lake/a.jsonl", storage_options=server.options())
        assert file.compression == "gzip"
        assert len(read_rows_of([file], storage_options=server.options())) == 30

    @promise(245)
    def test_a_killed_connection_and_an_overload_lose_nothing(
        self, server: GcsServer
    ) -> None:
        texts = documents(10_000)
        server.put("lake", "long.jsonl", jsonl(texts))
        files = listed("gs://lake/long.jsonl", storage_options=server.options())
        require_resumed(server, files, texts, "download", status=429)

    def test_every_request_names_the_generation(self, server: GcsServer) -> None:
        server.put("lake", "x.jsonl", jsonl(documents(20)))
        files = listed("gs://lake/x.jsonl", storage_options=server.options())
        # The same bytes, but another generation.
        server.put("lake", "x.jsonl", jsonl(documents(20)))
        with pytest.raises(InputChangedError, match="another version"):
            read_rows_of(files, storage_options=server.options())
        assert all(
            "ifGenerationMatch" in request.path
            for request in server.requests("GET", "download")
        )

    def test_an_object_that_is_replaced_while_it_is_read(
        self, server: GcsServer
    ) -> None:
        server.put("lake", "x.jsonl", jsonl(documents(20)))
        (file,) = listed("gs://lake/x.jsonl", storage_options=server.options())
        with (
            pytest.raises(InputChangedError, match="its version is generation"),
            opened(file, server.options()) as data,
        ):
            data.pread(100, 0)
            server.put("lake", "x.jsonl", jsonl(documents(20)))

    def test_a_token_by_reference(
        self, server: GcsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.token = "ya29.not-a-real-token"
        server.put("lake", "x.jsonl", jsonl(documents(20)))
        monkeypatch.setenv("LAKE_TOKEN", f"Bearer {server.token}")
        assert (
            len(everything("gs://lake/x.jsonl", storage_options=server.options())) == 20
        )
        monkeypatch.setenv("LAKE_TOKEN", "Bearer ya29.another-one")
        with pytest.raises(
            SourceError, match=r"access is denied .*places that Google's tools use"
        ) as caught:
            listed("gs://lake/x.jsonl", storage_options=server.options())
        assert "ya29" not in str(caught.value)


@promise(324)
def test_a_build(server: GcsServer, tmp_path: Path, tokenizer_dir: Path) -> None:
    server.put("lake", "in/a.jsonl", jsonl(documents(500)))
    server.put("lake", "in/b.jsonl", jsonl(documents(500)))
    options = {"storage_options": server.options()}
    result = build_dataset(
        config_of(tmp_path, "gs://lake/in", tokenizer_dir, pack=128, **options),
        workers=1,
    )
    assert sum(entry.documents for entry in result.manifest.files) == 1000
