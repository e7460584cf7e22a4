"""Files of web servers: good ones, ones without ranges or HEAD, and ones that break
down.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.seeds import promise
from tests.servers.base import Fault, large
from tests.servers.http import HttpServer
from tests.sources.remote_support import (
    corpus,
    documents,
    everything,
    jsonl,
    listed,
    parquet,
    read_rows_of,
    require_same_as_local,
)
from tokenlake.errors import (
    ConfigError,
    InputChangedError,
    SourceError,
    SourceNotFoundError,
)
from tokenlake.etl.sources import opened
from tokenlake.rowwise import JsonShardedSource
from tokenlake.runtime.store import client, close_filesystems


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server
    close_filesystems()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0.6")


def urls(server: HttpServer, *names: str) -> list[str]:
    return [f"{server.url}/set/{name}" for name in names]


def serve(server: HttpServer, files: dict[str, bytes]) -> list[str]:
    server.files |= {f"set/{name}": data for name, data in files.items()}
    return urls(server, *files)


def gets(server: HttpServer) -> list[tuple[int, int] | None]:
    return [request.range for request in server.requests("GET")]


class TestSameAsLocal:
    @promise(143, 144, 145, 146, 147)
    def test_every_format_gives_the_texts_and_positions_of_local_files(
        self, server: HttpServer, tmp_path: Path
    ) -> None:
        require_same_as_local(tmp_path, *serve(server, corpus()))

    @pytest.mark.parametrize("name", sorted(corpus()))
    def test_a_server_without_ranges_is_read_once_per_opening(
        self,
        server: HttpServer,
        name: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        data = corpus()[name]
        (url,) = serve(server, {name: data})
        (file,) = listed(url)
        expected = read_rows_of([file])
        server.ranges = False
        server.log.clear()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert read_rows_of([file], unit_size=1 << 30) == expected
        assert not list(tmp_path.iterdir())
        # The first request shows that there are no ranges; one download follows.
        assert len(gets(server)) <= (4 if name.endswith("parquet") else 2)

    def test_an_empty_file(self, server: HttpServer) -> None:
        (url,) = serve(server, {"a.jsonl": b""})
        assert everything(url) == []


class TestListing:
    def test_tokens_sizes_and_paths(self, server: HttpServer) -> None:
        names = serve(server, {"a/x.jsonl": b"{}", "b/y.jsonl": b"{}\n"})
        first, second = listed(*names, names[0])
        assert (first.path, first.size, second.path, second.size) == (
            "a/x.jsonl",
            2,
            "b/y.jsonl",
            3,
        )
        assert first.url == names[0]
        assert first.token.startswith("etag:")
        assert first.token != second.token
        assert first.stat == ()

    def test_without_an_etag_the_date_counts(self, server: HttpServer) -> None:
        server.validator = "modified"
        (file,) = listed(*serve(server, {"a.jsonl": b"{}"}))
        assert file.token == "modified:Wed, 21 Oct 2026 07:28:00 GMT"

    @pytest.mark.parametrize("ranges", [True, False])
    def test_without_either_size_and_ends_count(
        self, server: HttpServer, ranges: bool
    ) -> None:
        server.validator, server.ranges = "", ranges
        data = bytes(200_000)
        (before,) = listed(*serve(server, {"a.jsonl": data}))
        (after,) = listed(*serve(server, {"a.jsonl": b"x" + data[1:]}))
        assert before.token.startswith("size:200000,ends:")
        assert before.token != after.token

    def test_a_server_that_refuses_head_is_asked_for_one_byte(
        self, server: HttpServer
    ) -> None:
        server.head = False
        (url,) = serve(server, {"a.jsonl": jsonl(documents(5))})
        assert len(everything(url)) == 5
        assert gets(server)[0] == (0, 0)

    @pytest.mark.parametrize("name", ["*.jsonl", "", "b/", "[0-9].jsonl"])
    def test_globs_and_folders_are_refused(self, server: HttpServer, name: str) -> None:
        with pytest.raises(
            ConfigError,
            match="web servers do not list their files; list every file, or a range",
        ):
            listed(f"{server.url}/{name}")

    def test_a_missing_file(self, server: HttpServer) -> None:
        with pytest.raises(
            SourceNotFoundError, match=r"/set/a\.jsonl: there is no such object.*404"
        ):
            listed(*urls(server, "a.jsonl"))
        assert len(server.log) == 1

    def test_several_servers_are_refused(self, server: HttpServer) -> None:
        with pytest.raises(
            ConfigError, match=r"two storages, http://127.*make them two sources"
        ):
            listed(f"{server.url}/a.jsonl", "https://example.org/b.jsonl")

    def test_an_extension_that_says_nothing(self, server: HttpServer) -> None:
        (url,) = serve(server, {"data": b"{}"})
        with pytest.raises(ConfigError, match="the extension is unknown"):
            listed(url)
        assert listed(url, type="jsonl")[0].format == "jsonl"

    def test_a_server_that_is_not_there(self, impatient: None) -> None:
        with HttpServer() as gone:
            url = f"{gone.url}/a.jsonl"
        with pytest.raises(
            SourceError, match=r"cannot be reached: tried .*Check the network"
        ):
            listed(url)


class TestRequests:
    """How many requests a reader causes."""

    def test_a_small_file_costs_one_range_and_a_last_look(
        self, server: HttpServer
    ) -> None:
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(100))}))
        server.log.clear()
        assert len(read_rows_of(files)) == 100
        assert [request.method for request in server.log] == ["GET", "HEAD"]

    def test_a_large_compressed_file_comes_in_few_growing_pieces(
        self, server: HttpServer
    ) -> None:
        noise = random.Random(5)
        texts = [noise.randbytes(600).hex() for _ in range(20_000)]
        (url,) = serve(server, {"a.jsonl": jsonl(texts)})
        (file,) = listed(url)
        server.log.clear()
        assert [text for _, _, text in read_rows_of([file], unit_size=1 << 40)] == texts
        ranges = gets(server)
        assert len(ranges) <= 2 + file.size // (8 << 20) + 1
        assert (
            sum(last + 1 - first for first, last in filter(None, ranges)) == file.size
        )

    def test_a_column_of_parquet_comes_in_large_pieces_and_other_columns_hardly(
        self, server: HttpServer
    ) -> None:
        noise = random.Random(7)
        count = 3000
        text = pa.array([noise.randbytes(1500).hex() for _ in range(count)])
        other = pa.array([noise.randbytes(5000) for _ in range(count)])
        sink = pa.BufferOutputStream()
        table, plain = (
            pa.table({"text": text, "other": other}),
            {"compression": "none", "use_dictionary": False},
        )
        pq.write_table(table, sink, row_group_size=count, **plain)
        data = sink.getvalue().to_pybytes()
        (url,) = serve(server, {"a.parquet": data})
        (file,) = listed(url)
        server.log.clear()
        rows = read_rows_of([file])
        assert [row[2] for row in rows] == text.to_pylist()
        ranges = [span for span in gets(server) if span]
        chunk = (
            pq.ParquetFile(pa.BufferReader(data))
            .metadata.row_group(0)
            .column(0)
            .total_compressed_size
        )
        assert chunk > 8 << 20
        assert len(ranges) <= 12, ranges
        assert sum(last + 1 - first for first, last in ranges) < 2.2 * chunk

    def test_arrow_may_read_anywhere_and_from_threads(self, server: HttpServer) -> None:
        data = parquet(documents(), 100)
        (file,) = listed(*serve(server, {"a.parquet": data}))
        with opened(file) as remote:
            table = pq.read_table(remote.for_arrow(), use_threads=True, pre_buffer=True)
            assert table["text"].to_pylist() == documents()
            assert remote.pread(10, file.size - 4) == data[-4:]
            assert remote.pread(10, file.size + 4) == b""
            assert remote.pread(file.size, 0) == data


class TestBreakdowns:
    @promise(245)
    def test_a_dropped_connection_is_resumed_where_it_broke(
        self, server: HttpServer
    ) -> None:
        texts = documents(20_000)
        files = listed(*serve(server, {"a.jsonl": jsonl(texts)}))
        server.log.clear()
        server.faults.extend(
            Fault(after=bytes_, applies=large) for bytes_ in (100_000, 50_000, 0)
        )
        rows = read_rows_of(files, unit_size=1 << 30)
        assert [row[2] for row in rows] == texts
        assert not server.faults
        # What had come was kept: every try starts where the one before broke off.
        spans = [request.range for request in server.log if large(request)]
        starts = [span[0] for span in spans if span]
        assert len(starts) == 4
        assert starts[0] < starts[1] < starts[2] == starts[3]
        assert {span[1] for span in spans if span} == {files[0].size - 1}

    @pytest.mark.parametrize("status", [429, 500, 504])
    def test_passing_failures_are_tried_again(
        self, server: HttpServer, status: int
    ) -> None:
        (url,) = serve(server, {"a.jsonl": jsonl(documents(50))})
        server.faults.extend([Fault(status=status, applies=lambda request: True)] * 2)
        assert len(everything(url)) == 50
        assert not server.faults

    def test_endless_failures_are_given_up(
        self, server: HttpServer, impatient: None
    ) -> None:
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        server.faults.extend([Fault(status=503)] * 100)
        with pytest.raises(
            SourceError,
            match=r"a\.jsonl: it cannot be read: tried (once|\d+ times), .*HTTP status 503",
        ):
            read_rows_of(files)
        assert 0 < 100 - len(server.faults) < 20

    def test_a_server_that_stops_answering_is_given_up(
        self, server: HttpServer, impatient: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        options: dict[str, Any] = {"timeout": 0.2}
        server.faults.extend([Fault(wait=60.0)] * 20)
        with pytest.raises(
            SourceError, match=r"cannot be rea(d|ched): tried .*Timeout"
        ):
            read_rows_of(files, storage_options=options)

    @promise(242)
    def test_headers_go_with_every_request(self, server: HttpServer) -> None:
        url = serve(server, {"a.jsonl": jsonl(documents(50))})
        server.log.clear()
        source = JsonShardedSource(
            url, storage_options={"headers": {"Authorization": "Bearer x"}}
        )
        assert len(list(source)) == 50
        assert {request.headers["authorization"] for request in server.log} == {
            "Bearer x"
        }

    @pytest.mark.parametrize("status", [401, 403, 400, 404])
    def test_refusals_are_not_tried_again(
        self, server: HttpServer, status: int
    ) -> None:
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        server.log.clear()
        server.faults.append(Fault(status=status))
        kind: type[Exception] = SourceError
        message = r"access is denied .*headers: \{Authorization: \{env: NAME\}\}"
        if status == 400:
            message = "it cannot be read: .*400"
        elif status == 404:
            kind, message = InputChangedError, "the object no longer exists"
        with pytest.raises(kind, match=message):
            read_rows_of(files)
        assert len(server.log) == 1

    def test_the_number_of_tries_without_progress_is_bounded(
        self, server: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "_FIRST", 0.0)
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        server.log.clear()
        server.faults.extend([Fault(status=503)] * 100)
        with pytest.raises(SourceError, match="tried 30 times"):
            read_rows_of(files)
        assert len(server.requests("GET")) == 30

    def test_progress_starts_the_patience_anew(
        self, server: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "_FIRST", 0.0)
        texts = documents(20_000)
        files = listed(*serve(server, {"a.jsonl": jsonl(texts)}))
        server.faults.extend([Fault(after=20_000, applies=large)] * 40)
        assert [row[2] for row in read_rows_of(files, unit_size=1 << 30)] == texts
        assert not server.faults

    def test_a_download_without_ranges_begins_again(self, server: HttpServer) -> None:
        texts = documents(3000)
        files = listed(*serve(server, {"a.jsonl": jsonl(texts)}))
        server.ranges = False
        server.faults.extend(
            [Fault(after=100_000, applies=lambda request: request.range is None)] * 2
        )
        assert [row[2] for row in read_rows_of(files)] == texts
        assert not server.faults


class TestChanges:
    def test_a_file_that_was_replaced_before_it_is_read(
        self, server: HttpServer
    ) -> None:
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        serve(server, {"a.jsonl": jsonl(documents(50)[::-1])})
        with pytest.raises(
            InputChangedError, match="changed since the build was planned"
        ):
            read_rows_of(files)

    @pytest.mark.parametrize("validator", ["etag", ""])
    def test_a_file_that_is_replaced_while_it_is_read(
        self, server: HttpServer, validator: str
    ) -> None:
        server.validator = validator
        (file,) = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        with pytest.raises(InputChangedError), opened(file) as data:
            data.pread(100, 0)
            serve(server, {"a.jsonl": jsonl(documents(50)[::-1])})

    def test_a_file_that_grew_by_no_version(self, server: HttpServer) -> None:
        server.validator = "modified"
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        serve(server, {"a.jsonl": jsonl(documents(51))})
        with pytest.raises(InputChangedError, match="expected"):
            read_rows_of(files)

    def test_a_file_that_is_gone(self, server: HttpServer) -> None:
        files = listed(*serve(server, {"a.jsonl": jsonl(documents(50))}))
        server.files.clear()
        with pytest.raises(InputChangedError, match="the object no longer exists"):
            read_rows_of(files)
