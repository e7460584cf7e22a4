"""The server of pages: what it sends, to whom, and what it refuses."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.etl.reports import serve_folder


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """URL of a served folder; a file beside the folder must never be sent."""
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    site = tmp_path / "site"
    (site / "pages").mkdir(parents=True)
    (site / "index.html").write_text("<p>home</p>", encoding="utf-8")
    (site / "pages" / "a b.js").write_text("'é'", encoding="utf-8")
    (site / ".record.json").write_text("secret", encoding="utf-8")
    (site / "link.txt").symlink_to(tmp_path / "secret.txt")
    with serve_folder(site) as url:
        yield url


def request(
    url: str, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a request whose path is sent unchanged."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    try:
        connection.request(method, path, headers={"Host": host or address.netloc})
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/", "text/html; charset=utf-8", b"<p>home</p>"),
        ("/index.html?from=mail#top", "text/html; charset=utf-8", b"<p>home</p>"),
        ("/pages/a%20b.js", "text/javascript; charset=utf-8", "'é'".encode()),
    ],
)
def test_a_file_is_sent_with_its_type(
    url: str, path: str, content_type: str, body: bytes
) -> None:
    status, headers, received = request(url, path)
    assert (status, headers["Content-Type"], received) == (200, content_type, body)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_head_sends_no_body(url: str) -> None:
    status, headers, received = request(url, "/", method="HEAD")
    assert (status, headers["Content-Length"], received) == (200, "11", b"")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/missing.html",
            "/pages",
            "/pages/",
            "/../secret.txt",
            "/%2e%2e/secret.txt",
            "//secret.txt",
        ),
        *(
            "/pages/..%2f..%2fsecret.txt",
            "/link.txt",
            "/.record.json",
            "/a%00b",
            "/" + "a" * 5000,
        ),
    ],
)
def test_nothing_outside_the_folder_is_sent(url: str, path: str) -> None:
    status, _, received = request(url, path)
    assert status == 404
    assert b"secret" not in received


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "localhost"]
)
def test_a_foreign_host_gets_nothing(url: str, host: str) -> None:
    status, _, received = request(url, "/", host=host)
    assert status == 403
    assert b"home" not in received


def test_this_machine_has_two_names(url: str) -> None:
    assert request(url, "/", host=f"localhost:{urlsplit(url).port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(url: str, method: str) -> None:
    assert request(url, "/", method=method)[0] == 501


def test_a_port_in_use_is_named(url: str, tmp_path: Path) -> None:
    port = urlsplit(url).port
    assert port is not None
    with (
        pytest.raises(
            ConfigError, match=rf"--port {port}: the port is in use .* `--port 0`"
        ),
        serve_folder(tmp_path, port),
    ):
        pass


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_has_sixteen_bits(tmp_path: Path, port: int) -> None:
    with (
        pytest.raises(ConfigError, match="expected a number from 0 to 65535"),
        serve_folder(tmp_path, port),
    ):
        pass


def test_a_folder_must_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match="there is no such folder to serve"),
        serve_folder(tmp_path / "no"),
    ):
        pass
