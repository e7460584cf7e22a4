"""URLs: which may be opened at all, where a server may lead us, and that no message
repeats what is secret in one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenlake as tl
from tests.servers.http import HttpServer, RedirectingServer
from tests.sources.remote_support import documents, everything, jsonl, listed
from tokenlake import load_config
from tokenlake import sql as query
from tokenlake.errors import ConfigError, SourceError, StoreError, TokenlakeError
from tokenlake.etl import build_dataset
from tokenlake.etl.sources import HubClient
from tokenlake.rowwise import expand_data_files
from tokenlake.runtime.store import (
    close_filesystems,
    open_read_store,
    open_store,
    parse_url,
)

PUBLIC = "https://data.example.org"


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    close_filesystems()


class TestSchemes:
    @pytest.mark.parametrize(
        "scheme",
        ["s3", "s3a", "gs", "gcs", "http", "https", "hf", "az", "abfs", "abfss", "adl"],
    )
    def test_allowed_without_being_asked_for(
        self, scheme: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TOKENLAKE_ALLOWED_SCHEMES", raising=False)
        assert parse_url(f"{scheme}://place/a").path == "a"

    @pytest.mark.parametrize(
        "scheme",
        [
            "ftp",
            "sftp",
            "ssh",
            "smb",
            "git",
            "github",
            "memory",
            "data",
            "dbfs",
            "webhdfs",
            "jlab",
        ],
    )
    def test_allowed_only_by_the_variable(
        self, scheme: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TOKENLAKE_ALLOWED_SCHEMES", raising=False)
        wanted = rf"{scheme}:// is not an allowed scheme; .*set TOKENLAKE_ALLOWED_SCHEMES={scheme} in the env"
        for refused in (
            lambda: parse_url(f"{scheme}://place/a"),
            lambda: open_read_store(f"{scheme}://place/a"),
            lambda: tl.open(f"{scheme}://place/a@v1"),
            lambda: listed(f"{scheme}://place/a.jsonl"),
            lambda: expand_data_files(f"{scheme}://place/a.jsonl"),
        ):
            with pytest.raises(ConfigError, match=wanted):
                refused()
        monkeypatch.setenv("TOKENLAKE_ALLOWED_SCHEMES", f"other, {scheme.upper()}")
        assert parse_url(f"{scheme}://place/a").scheme == scheme

    @pytest.mark.parametrize(
        "scheme",
        ["local", "simplecache", "filecache", "blockcache", "reference", "zip", "tar"],
    )
    def test_never_allowed(self, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOKENLAKE_ALLOWED_SCHEMES", scheme)
        with pytest.raises(ConfigError, match="cannot be allowed"):
            open_read_store(f"{scheme}:///etc/passwd")

    @pytest.mark.parametrize(
        "url",
        [
            "simplecache::s3://lake/a",
            "s3://lake/a::file:///etc/passwd",
            "zip://a::s3://lake/b.zip",
            "s3://::file:///etc",
        ],
    )
    def test_chains_are_refused(self, url: str) -> None:
        for refused in (parse_url, open_read_store, listed):
            with pytest.raises(ConfigError, match=r"chained|cannot be allowed"):
                refused(url)

    def test_file_urls_are_local_paths_in_every_spelling(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(jsonl(documents(3)))
        for scheme in ("file", "FILE", "File"):
            found = listed(f"{scheme}://{tmp_path}/a.jsonl")
            assert [file.is_local for file in found] == [True]


BAD = [
    "https://me:hunter2hunter2@host.invalid/x.jsonl",
    "https://hunter2hunter2@host.invalid/x.jsonl",
    "s3://key:hunter2hunter2@bucket/x.jsonl",
    "ftp://me:hunter2hunter2@host.invalid/x.jsonl",
    "https://host.invalid/x.jsonl?sig=hunter2hunter2",
    "https://host.invalid/x.jsonl?page=1&X-Amz-Security-Token=hunter2hunter2",
    "file://me:hunter2hunter2@host/x.jsonl",
    "zip://a::https://me:hunter2hunter2@host.invalid/x",
]


def _build(tokenizer: Path, key: str, url: str) -> None:
    dataset = {
        "name": "s",
        "data_files": str(tokenizer / "tokenizer.json"),
        "type": "json",
        "tokenizer": str(tokenizer),
    }
    config: dict[str, Any] = {
        "name": "x",
        "datasets": [dataset],
        "pack": {"enabled": True, "seq_length": 64},
    }
    if key == "save":
        config["save"] = {"output_dir": url}
    elif key == "dataset":
        config["datasets"] = [{"name": "s", "dataset": url}]
    else:
        dataset[key] = [url, str(tokenizer)] if key == "mixed" else url  # type: ignore[assignment]
        if key == "mixed":
            dataset["data_files"] = dataset.pop("mixed")
    build_dataset(config, workers=1)


ENTRANCES: dict[str, Callable[[str, Path], object]] = {
    "open": lambda url, _: tl.open(url),
    "open a name": lambda url, _: tl.open(url, "x@v1"),
    "open_store": lambda url, _: open_store(url),
    "open_read_store": lambda url, _: open_read_store(url),
    "query": lambda url, _: query(url, "select 1"),
    "expand": lambda url, _: expand_data_files(url),
    "listing": lambda url, _: listed(url),
    "a configuration": lambda url, _: load_config(url),
    **{
        key: lambda url, tokenizer, key=key: _build(tokenizer, key, url)
        for key in ("data_files", "mixed", "exclude", "tokenizer", "save", "dataset")
    },
}


@pytest.mark.parametrize("url", BAD)
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_no_entrance_takes_or_repeats_credentials(
    entrance: str, url: str, tokenizer_dir: Path
) -> None:
    with pytest.raises(TokenlakeError) as caught:
        ENTRANCES[entrance](url, tokenizer_dir)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error) + repr(error) + repr(
            getattr(error, "details", "")
        ), type(error)
        error = error.__cause__


def test_errors_keep_what_is_no_secret() -> None:
    for text in (
        "s3://bucket/a@b:c.jsonl is gone",
        "abfs://container@account.dfs.core.windows.net/a",
        "GET https://host:8443/get?file=a.jsonl&page=2 failed; write to me@example.org",
        "sftp://me@host/a.jsonl",
        "C:/a@b",
    ):
        assert str(TokenlakeError(text)) == text


class TestRedirects:
    @pytest.fixture
    def far(self) -> Iterator[HttpServer]:
        with HttpServer({"a.jsonl": jsonl(documents(20))}) as server:
            yield server

    @pytest.fixture
    def near(self) -> Iterator[RedirectingServer]:
        with RedirectingServer() as server:
            yield server

    def test_one_is_followed_without_the_headers_of_the_options(
        self, near: RedirectingServer, far: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        near.target = f"{far.url}/a.jsonl"
        monkeypatch.setenv("LAKE_TOKEN", "opensesame")
        headers = {
            "Private-Token": {"env": "LAKE_TOKEN"},
            "Authorization": {"env": "LAKE_TOKEN"},
        }
        assert (
            len(everything(f"{near.url}/a.jsonl", storage_options={"headers": headers}))
            == 20
        )
        assert all("opensesame" in str(request.headers) for request in near.log)
        assert far.log
        assert not [
            request for request in far.log if "opensesame" in str(request.headers)
        ]

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("http://169.254.169.254/latest/meta-data/a.jsonl", "a link-local address"),
            ("http://[fe80::1]/a.jsonl", "a link-local address"),
            ("http://[::ffff:169.254.169.254]/a.jsonl", "a link-local address"),
            ("http://2852039166/a.jsonl", "a link-local address"),
            ("file:///etc/passwd", "redirects from http to file"),
            ("ftp://host/a.jsonl", "redirects from http to ftp"),
        ],
    )
    def test_refused_before_anything_is_sent(
        self, near: RedirectingServer, target: str, message: str
    ) -> None:
        near.target = target
        with pytest.raises(SourceError, match=message):
            listed(f"{near.url}/a.jsonl")
        with pytest.raises(StoreError, match=message):
            open_read_store(near.url).read("x/v1/manifest.json")

    @pytest.mark.parametrize(
        "target",
        [
            "http://127.0.0.2:{port}/a.jsonl",
            "http://localhost:{port}/a.jsonl",
            "http://10.0.0.1/a.jsonl",
            "http://100.64.0.1/a.jsonl",
            "http://93.184.216.34/a.jsonl",
        ],
    )
    def test_a_private_server_redirects_to_itself_alone(
        self, near: RedirectingServer, far: HttpServer, target: str
    ) -> None:
        near.target = target.format(port=far.port)
        with pytest.raises(SourceError, match=r"redirects to .*(private network)"):
            listed(f"{near.url}/a.jsonl")
        assert not far.log

    def test_a_name_that_resolves_to_another_address_later_is_refused_when_it_is_connected_to(
        self, near: RedirectingServer, far: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The address that was judged must be the one that is connected to."""
        answers = {
            "named.test": ["127.0.0.1", "93.184.216.34"],
            "other.test": ["93.184.216.35", "127.0.0.1"],
        }
        resolve = socket.getaddrinfo

        def answer(host: str, *rest: Any, **options: Any) -> Any:
            known = answers.get(host)
            if known is None:
                return resolve(host, *rest, **options)
            address = known.pop(0) if len(known) > 1 else known[0]
            return resolve(address, *rest, **options)

        monkeypatch.setattr(socket, "getaddrinfo", answer)
        near.target = f"http://other.test:{far.port}/a.jsonl"
        with pytest.raises(
            SourceError,
            match=r"redirects to other\.test, an address of the private network",
        ):
            listed(f"http://named.test:{near.port}/a.jsonl")
        assert near.log and not far.log

    @pytest.mark.parametrize(
        "target",
        [
            "http://169.254.169.254/latest/meta-data",
            "http://100.64.0.1/x",
            "http://[64:ff9b::a9fe:a9fe]/x",
        ],
    )
    def test_a_public_hub_does_not_redirect_inside(
        self, near: RedirectingServer, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        addresses = ["127.0.0.1", "93.184.216.34"]  # connected to, and judged
        resolve = socket.getaddrinfo

        def answer(host: str, *rest: Any, **options: Any) -> Any:
            if host == "hub.test":
                host = addresses.pop(0)
            return resolve(host, *rest, **options)

        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(socket, "getaddrinfo", answer)
        near.target = target
        client = HubClient({"endpoint": f"http://hub.test:{near.port}"}, retries=0)
        with pytest.raises(
            SourceError,
            match=r"it: the server redirects to http://.*, an? (link-local )?address",
        ):
            client.get("/api/datasets/x", what="it")

    def test_a_redirect_on_one_host_stays_in_the_list(
        self, near: RedirectingServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        near.target = f"{near.url}/secret/a.jsonl"
        monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", f"{near.url}/sets")
        with pytest.raises(
            SourceError, match="outside the places that TOKENLAKE_ALLOWED_INPUTS allows"
        ):
            listed(f"{near.url}/sets/a.jsonl")
        assert not [request for request in near.log if "secret" in request.path]

    def test_an_allow_list_holds_for_redirects(
        self, near: RedirectingServer, far: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        near.target = f"{far.url}/a.jsonl"
        monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", near.url)
        with pytest.raises(
            SourceError,
            match=r"redirects to .*, outside the places that TOKENLAKE_ALLOWED_INPUTS allows",
        ):
            listed(f"{near.url}/a.jsonl")
        assert not far.log
        monkeypatch.setenv(
            "TOKENLAKE_ALLOWED_INPUTS", f"{near.url}:{far.url}/elsewhere"
        )
        with pytest.raises(SourceError, match="outside the places that"):
            listed(f"{near.url}/a.jsonl")
        monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", f"{near.url}:{far.url}")
        assert len(everything(f"{near.url}/a.jsonl")) == 20
